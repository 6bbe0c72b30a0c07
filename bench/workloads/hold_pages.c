/* SPDX-License-Identifier: MIT */
/*
 * Touches pages, prints a line, and waits to be killed.
 *
 *   hold_pages PAGES
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL

int main(int argc, char **argv)
{
	unsigned long pages = argc == 2 ? strtoul(argv[1], NULL, 0) : 0;
	char *held;

	if (!pages) {
		fprintf(stderr, "usage: hold_pages PAGES\n");
		return 2;
	}
	held = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (held == MAP_FAILED) {
		perror("hold_pages: mmap");
		return 1;
	}
	for (unsigned long page = 0; page < pages; page++)
		held[page * PAGE] = 1;
	puts("held");
	fflush(stdout);
	for (;;)
		pause();
}
