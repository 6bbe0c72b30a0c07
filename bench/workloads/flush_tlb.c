/*
 * flush_tlb: what limits how long a CPU remembers translations, where the emulated one does not.
 *
 *   flush_tlb MICROSECONDS
 *
 * A real TLB holds some 1500 translations, and an access to any other page walks the page table,
 * which sets the accessed bit that DAMON, idle page tracking and reclaim look at. QEMU remembers
 * as many as there are until the address space changes, so that a program alone on a CPU would
 * set each bit once. This program wakes this often, and its address space takes the place of the
 * other for a moment. It runs until it is killed.
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
