/* SPDX-License-Identifier: MIT */
/*
 * memcpy from one array to another, again and again: backups, message buffers, snapshots.
 *
 *   memcopy BYTES ROUNDS      BYTES of each array
 *
 * Each round changes a word of the source first; at the end both arrays are equal and each change
 * is there.
 */
#include "common.h"

#include <string.h>

int main(int argc, char **argv)
{
	const size_t bytes = argument(argc, argv, 1), rounds = argument(argc, argv, 2);
	const size_t words = bytes / sizeof(uint64_t);
	uint64_t *source = array_of(words, sizeof(*source)), *copy = array_of(words, sizeof(*copy));
	size_t wrong = 0;

	for (size_t i = 0; i < words; i++)
		source[i] = i;
	for (size_t round = 1; round <= rounds; round++) {
		source[words - round] = round;
		memcpy(copy, source, bytes);
	}
	for (size_t round = 1; round <= rounds; round++)
		wrong += copy[words - round] != round;
	wrong += memcmp(copy, source, bytes) != 0;
	return report("memcopy", wrong == 0, (double)(bytes * rounds));
}
