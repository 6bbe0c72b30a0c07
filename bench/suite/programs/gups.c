/* SPDX-License-Identifier: MIT */
/*
 * HPC Challenge's RandomAccess: a table of 64-bit words, updated by XOR at random places.
 *
 *   gups WORDS UPDATES      WORDS is a power of two
 *
 * Checked as HPCC does: the same updates once more restore the table. No update waits for another,
 * so as many misses are under way as the machine allows.
 */
#include "common.h"

static void update(uint64_t *table, uint64_t words, uint64_t updates)
{
	uint64_t state = 1;

	for (uint64_t i = 0; i < updates; i++) {
		const uint64_t value = splitmix64(&state);

		table[value & (words - 1)] ^= value;
	}
}

int main(int argc, char **argv)
{
	const uint64_t words = argument(argc, argv, 1), updates = argument(argc, argv, 2);
	uint64_t *table = array_of(words, sizeof(*table));
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < words; i++)
		table[i] = i;
	update(table, words, updates);
	update(table, words, updates);
	for (uint64_t i = 0; i < words; i++)
		wrong += table[i] != i;
	return report("gups", wrong == 0, (double)updates);
}
