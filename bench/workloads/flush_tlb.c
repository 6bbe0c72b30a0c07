/* SPDX-License-Identifier: MIT */
/*
 * flush_tlb: flushes the TLB of a CPU periodically, because the emulated TLB never evicts.
 *
 *   flush_tlb MICROSECONDS
 *
 * A real TLB holds about 1500 translations; an access to another page walks the page table and sets
 * the accessed bit that DAMON, idle page tracking and reclaim read. QEMU keeps all translations
 * until the address space changes, so that a program alone on a CPU sets each bit only once. This
 * program wakes periodically, so that its address space replaces the other one for a moment. It
 * runs until it is killed.
 */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned us = argc == 2 ? (unsigned)atoi(argv[1]) : 0;

	if (us == 0)
		return 2;
	for (;;)
		usleep(us);
}
