/* SPDX-License-Identifier: MIT */
#include "pages.h"

#include <errno.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(void *) == sizeof(uint64_t),
	       "addresses are passed to the kernel as they are");

/* Entries per query; their status fits on the stack. */
#define QUERY_ENTRIES 1024

/* Ranges per call (UIO_MAXIOV). */
#define PAGEOUT_RANGES 1024

/* The C library of Debian 12 has no wrapper; the call has one number on all architectures. */
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

int64_t hmd_query_nodes(int pid, size_t count, const uint64_t *addresses, int16_t *nodes)
{
	int status[QUERY_ENTRIES];

	for (size_t start = 0; start < count; start += QUERY_ENTRIES) {
		size_t entries = count - start < QUERY_ENTRIES ? count - start : QUERY_ENTRIES;
		/* The declaration lacks a const: the kernel only reads the array of pages. */
		void **pages = (void **)(uintptr_t)(addresses + start);

		if (move_pages(pid, entries, pages, NULL, status, 0) < 0)
			return -errno;
		for (size_t i = 0; i < entries; i++)
			nodes[start + i] = (int16_t)status[i];
	}
	return 0;
}

int64_t hmd_move_pages(int pid, size_t count, const uint64_t *addresses, const int32_t *nodes,
		       int32_t *status, int flags)
{
	long result = move_pages(pid, count, (void **)(uintptr_t)addresses, nodes, status, flags);

	return result < 0 ? -errno : result;
}

static int64_t advise(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes,
		      int advice)
{
	struct iovec ranges[PAGEOUT_RANGES];
	long result;

	if (count > PAGEOUT_RANGES)
		return -EINVAL;
	for (size_t i = 0; i < count; i++) {
		ranges[i].iov_base = (void *)(uintptr_t)start[i];
		ranges[i].iov_len = bytes[i];
	}
	result = syscall(SYS_process_madvise, pidfd, ranges, count, advice, 0);
	return result < 0 ? -errno : result;
}

int64_t hmd_page_out(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes)
{
	return advise(pidfd, count, start, bytes, MADV_PAGEOUT);
}

int64_t hmd_page_in(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes)
{
	return advise(pidfd, count, start, bytes, MADV_WILLNEED);
}
