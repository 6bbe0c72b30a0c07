/* SPDX-License-Identifier: MIT */
/* Computes without an access to memory: spin TURNS. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	uint64_t state = 88172645463325252u;

	for (long turns = argc > 1 ? atol(argv[1]) : 0; turns > 0; turns--) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
	}
	printf("%llu\n", (unsigned long long)state);
	return 0;
}
