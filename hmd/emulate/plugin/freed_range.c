/* SPDX-License-Identifier: MIT */
#include "frees.h"

#define PAGE 4096u
#define USER_PAGES ((1ull << 47) / PAGE)

/* Linux, arch/x86/entry/syscalls/syscall_64.tbl */
#define CALL_MMAP 9
#define CALL_MUNMAP 11
#define CALL_BRK 12
#define CALL_MREMAP 25
#define CALL_MADVISE 28
#define CALL_EXIT_GROUP 231

#define FIXED 0x10 /* MAP_FIXED */
#define DONTNEED 4 /* MADV_DONTNEED */
#define REMOVE 9   /* MADV_REMOVE */

static uint64_t pages_of(uint64_t bytes)
{
	return bytes / PAGE + (bytes % PAGE != 0);
}

static uint64_t page_up(uint64_t address)
{
	return pages_of(address) * PAGE;
}

/* False where the kernel refuses the range. */
static bool take(struct freed_range *range, uint64_t start, uint64_t bytes)
{
	*range = (struct freed_range){ start, pages_of(bytes) };
	return start % PAGE == 0 && range->pages && range->pages <= USER_PAGES &&
	       start / PAGE <= USER_PAGES - range->pages;
}

bool freed_by(const struct system_call *call, struct freed_range *range)
{
	switch (call->number) {
	case CALL_MUNMAP:
		return take(range, call->first, call->second);
	case CALL_MADVISE:
		return (call->third == DONTNEED || call->third == REMOVE) &&
		       take(range, call->first, call->second);
	case CALL_MMAP:
		return (call->fourth & FIXED) && take(range, call->first, call->second);
	case CALL_MREMAP: {
		uint64_t kept = page_up(call->third), old = page_up(call->second);

		return kept && kept < old && take(range, call->first + kept, old - kept);
	}
	case CALL_BRK:
		*range = (struct freed_range){ page_up(call->first), 0 };
		return call->first && call->first / PAGE < USER_PAGES;
	case CALL_EXIT_GROUP:
		*range = (struct freed_range){ 0, USER_PAGES };
		return true;
	default:
		return false;
	}
}

/* Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: SYSCALL is 0F 05. */
bool is_system_call(const uint8_t *code, size_t size)
{
	return size == 2 && code[0] == 0x0f && code[1] == 0x05;
}
