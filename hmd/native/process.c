/* SPDX-License-Identifier: MIT */
#include "process.h"

#include <errno.h>
#include <linux/kcmp.h>
#include <malloc.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Node ids are lower (NODES_SHIFT is at most 10). */
#define MAX_NODES 1024

/* Argument of personality(2) that reads it without a change. */
#define READ_PERSONALITY 0xffffffffUL

int hmd_compare_spaces(int first, int second)
{
	long result = syscall(SYS_kcmp, first, second, KCMP_VM, 0, 0);

	return result < 0 ? -errno : (int)result;
}

int hmd_unmap_resident(uint64_t start, uint64_t bytes)
{
	return madvise((void *)(uintptr_t)start, bytes, MADV_DONTNEED) ? -errno : 0;
}

int hmd_keep_freed(int mapped_bytes, int kept_bytes)
{
	return mallopt(M_MMAP_THRESHOLD, mapped_bytes) && mallopt(M_TRIM_THRESHOLD, kept_bytes);
}

int hmd_bind_memory(size_t count, const int32_t *nodes)
{
	unsigned long mask[MAX_NODES / (8 * sizeof(unsigned long))] = { 0 };
	const size_t bits = 8 * sizeof(unsigned long);

	for (size_t i = 0; i < count; i++) {
		if (nodes[i] < 0 || nodes[i] >= MAX_NODES)
			return -EINVAL;
		mask[nodes[i] / bits] |= 1UL << (nodes[i] % bits);
	}
	/* The kernel reads one bit less than maxnode says (mm/mempolicy.c, get_nodes()). */
	return set_mempolicy(MPOL_BIND, mask, MAX_NODES + 1) < 0 ? -errno : 0;
}

int hmd_fix_addresses(void)
{
	int now = personality(READ_PERSONALITY);

	if (now < 0 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
		return -errno;
	return 0;
}
