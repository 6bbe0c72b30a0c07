/* SPDX-License-Identifier: MIT */
/*
 * System calls by which a program gives memory back, recorded next to its misses (RECORDING_FREE):
 * munmap(2), brk(2), madvise(2) with MADV_DONTNEED or MADV_REMOVE, mremap(2) to a smaller size,
 * mmap(2) with MAP_FIXED over what was there, and exit_group(2), as they begin.
 *
 * A record's vaddr is the first address, paid_hits and near_hits the low and high half of the
 * number of pages. Of brk(2) it is 0: up to the end of the heap until then. The pages of mremap(2)
 * that move are not recorded: the call's result says whether they do.
 */
#ifndef HMD_PLUGIN_FREES_H
#define HMD_PLUGIN_FREES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Arguments of a system call: its number in rax, then rdi, rsi, rdx, r10. */
struct system_call {
	uint64_t number, first, second, third, fourth;
};

/* A range of addresses; 0 pages of brk(2). */
struct freed_range {
	uint64_t start, pages;
};

/* Whether the call gives memory back, and which. */
bool freed_by(const struct system_call *call, struct freed_range *range);

/* Whether the code is the instruction SYSCALL. */
bool is_system_call(const uint8_t *code, size_t size);

struct qemu_plugin_insn;

/*
 * Instrument an instruction of user mode, if it is SYSCALL; its block has `remaining` instructions
 * from it on.
 */
void frees_instrument(struct qemu_plugin_insn *insn, size_t remaining);

#endif
