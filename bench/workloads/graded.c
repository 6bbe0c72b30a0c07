/* SPDX-License-Identifier: MIT */
/*
 * graded: random accesses to blocks of graded heat, on one CPU; the reference program of samplers.
 *
 *   graded FOOTPRINT_MIB BLOCK_KIB
 *
 * Block k of a random order has a share of accesses in proportion to 1/(k+1). Every other one (in
 * order of heat) is only loaded from, the rest also stored to. All memory is touched before it
 * prints {"start": ADDRESS, "bytes": N, "pid": PID} and begins; it runs until it is killed.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARES 4096 /* of which each block has some: their table stays in the cache */
#define ALIGNMENT (UINT64_C(2) << 20)

static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t next_random(void) /* xorshift64*, Vigna 2016 */
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * UINT64_C(2685821657736338717);
}

static void shuffle(uint16_t *order, unsigned blocks)
{
	for (unsigned i = 0; i < blocks; i++)
		order[i] = (uint16_t)i;
	for (unsigned i = blocks - 1; i > 0; i--) {
		unsigned j = (unsigned)((next_random() >> 32) % (i + 1));
		uint16_t swapped = order[i];

		order[i] = order[j];
		order[j] = swapped;
	}
}

/* Which rank each share belongs to: of all, the part that its weight is, one at least. */
static unsigned deal(uint16_t *rank, unsigned blocks)
{
	double total = 0, until = 0;
	unsigned given = 0;

	for (unsigned k = 0; k < blocks; k++)
		total += 1.0 / (k + 1);
	for (unsigned k = 0; k < blocks; k++) {
		until += 1.0 / (k + 1) / total * SHARES;
		do
			rank[given++] = (uint16_t)k;
		while (given < until && given < SHARES);
	}
	return given;
}

int main(int argc, char **argv)
{
	static uint16_t rank[2 * SHARES], order[SHARES];
	uint64_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) << 20 : 0;
	uint64_t block = argc == 3 ? strtoull(argv[2], NULL, 10) << 10 : 0;
	unsigned blocks = block ? (unsigned)(bytes / block) : 0;

	if (blocks < 2 || blocks > SHARES) {
		fprintf(stderr, "usage: graded FOOTPRINT_MIB BLOCK_KIB, 2 to %d blocks\n", SHARES);
		return 2;
	}
	char *memory = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("graded: mmap");
		return 1;
	}
	memory += -(uintptr_t)memory % ALIGNMENT;
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	memset(memory, 1, bytes);
	shuffle(order, blocks);
	const unsigned shares = deal(rank, blocks);

	printf("{\"start\": %" PRIuPTR ", \"bytes\": %" PRIu64 ", \"pid\": %d}\n", (uintptr_t)memory,
	       bytes, getpid());
	fflush(stdout);
	for (uint64_t sum = 0;;) {
		uint64_t bits = next_random();
		unsigned k = rank[(bits & UINT32_MAX) * shares >> 32];
		uint64_t words = block / sizeof(uint64_t);
		uint64_t *word = (uint64_t *)(memory + order[k] * block) + (bits >> 32) * words / ((uint64_t)1 << 32);

		sum += *(volatile uint64_t *)word;
		if (k % 2)
			*(volatile uint64_t *)word = sum;
	}
}
