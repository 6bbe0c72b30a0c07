/* SPDX-License-Identifier: MIT */
/*
 * Fills memory with words that follow from their place, and says on request whether all are there.
 *
 *     remember MIB
 *
 * Prints "filled"; then for each line of standard input the number of wrong words.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t word_of(size_t place, uint64_t round)
{
	uint64_t word = (place + 1) * 0x9e3779b97f4a7c15u + round;

	word ^= word >> 29;
	return word * 0xbf58476d1ce4e5b9u;
}

int main(int argc, char **argv)
{
	size_t words = argc > 1 ? strtoul(argv[1], NULL, 10) << 17 : 0;
	uint64_t *memory, round = 0;
	char line[16];

	if (!words)
		return 2;
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	madvise(memory, words * 8, MADV_NOHUGEPAGE);
	for (size_t place = 0; place < words; place++)
		memory[place] = word_of(place, round);
	printf("filled\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		size_t wrong = 0;

		/* Each word is another one afterwards: a page of a former round is wrong, too. */
		for (size_t place = 0; place < words; place++) {
			wrong += memory[place] != word_of(place, round);
			memory[place] = word_of(place, round + 1);
		}
		round++;
		printf("%zu\n", wrong);
		fflush(stdout);
	}
	return 0;
}
