/* SPDX-License-Identifier: MIT */
/*
 * Equal loads from two regions: of one the address of each load is what the last one returned, of
 * the other the loads are independent, so that their misses overlap.
 *
 *   two_patterns MIB
 *
 * Each region has MIB MiB. Page p of each has 64 lines at most that are loaded, as often as each
 * other: `loaded_lines(p)`. Prints the addresses of both and the number of lines per page, then runs
 * until it is killed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096
#define LINE 64
#define LINES (PAGE / LINE)
#define TURN 256

static uint64_t state = 88172645463325252ull;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

/* From 64 to 1, in an order that does not follow addresses. */
static unsigned loaded_lines(uint64_t page, uint64_t pages)
{
	return 1 + (LINES - 1) * (page * 2654435761u % pages) / pages;
}

static char *region(uint64_t bytes)
{
	char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		exit(1);
	madvise(start, bytes, MADV_NOHUGEPAGE);
	for (uint64_t at = 0; at < bytes; at += PAGE)
		start[at] = 1;
	return start;
}

/* A cycle through all lines that are loaded, in random order. */
static char *chain(char *start, uint64_t pages)
{
	uint64_t count = 0;
	char **line = malloc(pages * LINES * sizeof(*line));

	if (!line)
		exit(1);
	for (uint64_t page = 0; page < pages; page++)
		for (unsigned i = 0; i < loaded_lines(page, pages); i++)
			line[count++] = start + page * PAGE + i * LINE;
	for (uint64_t i = count - 1; i; i--) {
		uint64_t other = next_random() % (i + 1);
		char *swapped = line[i];

		line[i] = line[other];
		line[other] = swapped;
	}
	for (uint64_t i = 0; i < count; i++)
		*(char **)line[i] = line[(i + 1) % count];
	char *first = line[0];
	free(line);
	return first;
}

int main(int argc, char **argv)
{
	uint64_t pages = (argc > 1 ? strtoull(argv[1], NULL, 10) : 16) << 8;
	char *chased = region(pages * PAGE), *gathered = region(pages * PAGE);
	char *at = chain(chased, pages);
	volatile uint64_t sink;
	uint64_t sum = 0;

	printf("%llu %llu", (unsigned long long)chased, (unsigned long long)gathered);
	for (uint64_t page = 0; page < pages; page++)
		printf(" %u", loaded_lines(page, pages));
	puts("");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < TURN; i++)
			at = *(char **)at;
		for (int i = 0; i < TURN;) {
			uint64_t random = next_random(), page = random % pages;
			unsigned line = (random >> 40) % LINES;

			if (line < loaded_lines(page, pages)) {
				sum += *(uint64_t *)(gathered + page * PAGE + line * LINE);
				i++;
			}
		}
		sink = sum + (uint64_t)at;
	}
	(void)sink;
}
