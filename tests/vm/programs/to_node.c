/* SPDX-License-Identifier: MIT */
/*
 * Touches pages, moves them to a node in one call of move_pages(2), and prints how many are there.
 *
 *   to_node PAGES NODE
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define MPOL_MF_MOVE 2

int main(int argc, char **argv)
{
	unsigned long pages = argc == 3 ? strtoul(argv[1], NULL, 0) : 0, there = 0;
	int target = argc == 3 ? atoi(argv[2]) : 0;
	char *held = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void **address = calloc(pages, sizeof(*address));
	int *node = calloc(pages, sizeof(*node)), *status = calloc(pages, sizeof(*status));

	if (held == MAP_FAILED || !address || !node || !status)
		return 1;
	for (unsigned long page = 0; page < pages; page++) {
		address[page] = held + page * PAGE;
		held[page * PAGE] = 1;
		node[page] = target;
	}
	syscall(SYS_move_pages, 0, pages, address, node, status, MPOL_MF_MOVE);
	syscall(SYS_move_pages, 0, pages, address, NULL, status, 0);
	for (unsigned long page = 0; page < pages; page++)
		there += status[page] == target;
	printf("%lu\n", there);
	return 0;
}
