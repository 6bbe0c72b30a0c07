/* SPDX-License-Identifier: MIT */
/*
 * Calls about the calling process, for hmd.linux.own_process, and kcmp(2), for hmd.linux.mappings.
 */
#ifndef HMD_PROCESS_H
#define HMD_PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* kcmp(2) of two address spaces: 0 the same, 1, 2 or 3 another, or -errno. */
int hmd_compare_spaces(int first, int second);

/* madvise(2) with MADV_DONTNEED on memory of the caller. Returns 0 or -errno. */
int hmd_unmap_resident(uint64_t start, uint64_t bytes);

/*
 * mallopt(3): allocations of at least `mapped_bytes` are mapped for themselves, and up to
 * `kept_bytes` of freed memory are kept. Returns 0 where the C library refuses.
 */
int hmd_keep_freed(int mapped_bytes, int kept_bytes);

/* Binds allocations of the calling thread and its children to these nodes. Returns 0 or -errno. */
int hmd_bind_memory(size_t count, const int32_t *nodes);

/* Turns address space randomisation off for programs that the caller executes: 0 or -errno. */
int hmd_fix_addresses(void);

#endif
