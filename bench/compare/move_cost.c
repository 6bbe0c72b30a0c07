/* SPDX-License-Identifier: MIT */
/*
 * Moves 16 MiB to and fro between nodes 0 and 1 by move_pages(2), 512 pages per call.
 *
 *   move_cost ROUNDS
 *
 * Prints "moved" if every page moved in every round, else "wrong".
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 4096L
#define BATCH 512L
#define PAGE_BYTES 4096L
#define MPOL_MF_MOVE 2 /* move_pages(2) */

int main(int argc, char **argv)
{
	static void *page[PAGES];
	static int node[PAGES], status[PAGES];
	long rounds = argc > 1 ? strtol(argv[1], NULL, 0) : 0, wrong = 0;
	volatile char *memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 1;
	for (long i = 0; i < PAGES; i++) {
		page[i] = (void *)(memory + i * PAGE_BYTES);
		memory[i * PAGE_BYTES] = 1;
	}
	for (long round = 0; round < rounds; round++) {
		for (long i = 0; i < PAGES; i++)
			node[i] = (int)(round & 1);
		for (long i = 0; i < PAGES; i += BATCH)
			if (syscall(SYS_move_pages, 0, BATCH, page + i, node + i, status + i, MPOL_MF_MOVE))
				return 1;
		for (long i = 0; i < PAGES; i++)
			wrong += status[i] != (int)(round & 1);
	}
	puts(wrong ? "wrong" : "moved");
	return 0;
}
