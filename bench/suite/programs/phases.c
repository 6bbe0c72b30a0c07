/* SPDX-License-Identifier: MIT */
/*
 * Phases, each with a working set of its own, that come round again: a solver's steps, or the
 * stages of a pipeline.
 *
 *   phases PHASES WORDS READS ROUNDS      WORDS of each phase's table; READS of each phase
 *
 * A phase draws words of its own table: nine of ten from the table's first quarter, the others
 * from all of it. Reads come in chains of eight, in which each waits for the one before. Every word read is
 * checked: it follows from its place.
 */
#include "common.h"

#define CHAIN 8

/* The word at a place of a phase's table, which is its number, spread out. */
static inline uint64_t word_at(size_t phase, size_t place)
{
	return (place + phase + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline size_t place_of(uint64_t drawn, size_t words)
{
	const size_t within = drawn % 10 ? words / 4 : words;

	return (size_t)(((drawn >> 32) * within) >> 32);
}

int main(int argc, char **argv)
{
	const size_t phases = argument(argc, argv, 1), words = argument(argc, argv, 2);
	const uint64_t reads = argument(argc, argv, 3), rounds = argument(argc, argv, 4);
	uint64_t **table = array_of(phases, sizeof(*table));
	uint64_t state = 9, wrong = 0;

	for (size_t phase = 0; phase < phases; phase++) {
		table[phase] = array_of(words, sizeof(**table));
		for (size_t i = 0; i < words; i++)
			table[phase][i] = word_at(phase, i);
	}
	for (uint64_t round = 0; round < rounds; round++)
		for (size_t phase = 0; phase < phases; phase++)
			for (uint64_t i = 0; i < reads; i += CHAIN) {
				uint64_t drawn = splitmix64(&state);

				for (size_t link = 0; link < CHAIN; link++) {
					const size_t place = place_of(drawn, words);
					const uint64_t read = table[phase][place];

					wrong += read != word_at(phase, place);
					drawn = (drawn + read) * UINT64_C(0xbf58476d1ce4e5b9);
					drawn ^= drawn >> 29;
				}
			}
	return report("phases", wrong == 0, (double)(rounds * phases * reads));
}
