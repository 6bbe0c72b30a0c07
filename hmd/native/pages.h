/* SPDX-License-Identifier: MIT */
/*
 * move_pages(2) and process_madvise(2) over flat arrays, for hmd.linux.page_calls. cffi releases
 * the interpreter's lock around the calls, so that a slow migration does not stop other threads of
 * the daemon.
 */
#ifndef HMD_PAGES_H
#define HMD_PAGES_H

#include <stddef.h>
#include <stdint.h>

/*
 * Fills `nodes` with the node of each page, or -errno of that page. Returns 0, or the -errno of a
 * call that failed as a whole; `nodes` is then valid up to that call.
 */
int64_t hmd_query_nodes(int pid, size_t count, const uint64_t *addresses, int16_t *nodes);

/* Returns what the kernel returns: 0, the number of pages not migrated, or -errno. */
int64_t hmd_move_pages(int pid, size_t count, const uint64_t *addresses, const int32_t *nodes,
		       int32_t *status, int flags);

/*
 * Asks the kernel to reclaim ranges of another process's memory, at most 1024. Returns the bytes
 * advised: all, or those before the first range that the kernel refused; -errno if that is the
 * first range.
 */
int64_t hmd_page_out(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes);

/* Asks the kernel to read ranges back from swap without waiting; otherwise as hmd_page_out. */
int64_t hmd_page_in(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes);

#endif
