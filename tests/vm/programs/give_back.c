/* SPDX-License-Identifier: MIT */
/*
 * Gives memory back in several ways, and prints what.
 *
 * Each line of output is a way, the address of the first page and the number of pages. Pages are
 * read twice with the last-level cache emptied in between, so that each has a miss of its own.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define CACHE (8UL << 20)

static volatile uint64_t sum;
static char *cache;

static void fill(char *memory, unsigned long pages)
{
	for (unsigned long page = 0; page < pages; page++)
		memory[page * PAGE] = 1;
	for (unsigned long byte = 0; byte < CACHE; byte += 64)
		cache[byte]++;
	for (unsigned long page = 0; page < pages; page++)
		sum += memory[page * PAGE];
}

static char *map(unsigned long bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);

	if (memory == MAP_FAILED) {
		perror("give_back: mmap");
		exit(1);
	}
	return memory;
}

static void say(const char *way, const void *start, unsigned long pages)
{
	printf("%s %lu %lu\n", way, (unsigned long)(uintptr_t)start, pages);
}

int main(void)
{
	char *unmapped, *dropped, *heap, *kept;

	cache = map(CACHE);
	unmapped = map(100 * PAGE);
	dropped = map(90 * PAGE);
	kept = map(80 * PAGE);
	heap = sbrk(0);
	heap = (char *)(((uintptr_t)heap + PAGE - 1) & ~(PAGE - 1));
	if (brk(heap + 70 * PAGE))
		return 1;
	fill(unmapped, 100);
	fill(dropped, 90);
	fill(kept, 80);
	fill(heap, 70);
	if (munmap(unmapped + 10 * PAGE, 50 * PAGE) || madvise(dropped, 40 * PAGE, MADV_DONTNEED) ||
	    brk(heap + 40 * PAGE))
		return 1;
	say("munmap", unmapped + 10 * PAGE, 50);
	say("madvise", dropped, 40);
	say("brk", heap + 40 * PAGE, 30);
	say("kept", kept, 80);
	fflush(stdout);
	/* What was given back by madvise(2) is allocated, and given back, again. */
	fill(dropped, 40);
	return madvise(dropped, 40 * PAGE, MADV_DONTNEED) != 0;
}
