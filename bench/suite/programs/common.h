/* SPDX-License-Identifier: MIT */
/* What the suite's own programs share: memory, random numbers, and how they end. */
#ifndef HMD_SUITE_COMMON_H
#define HMD_SUITE_COMMON_H

#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Zeroed memory of 4 KiB pages, one mapping a call: layouts by mapping see each array. */
static void *array_of(size_t count, size_t size)
{
	void *start = mmap(NULL, count * size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED) {
		fprintf(stderr, "no memory for %zu times %zu bytes\n", count, size);
		exit(2);
	}
	madvise(start, count * size, MADV_NOHUGEPAGE);
	return start;
}

static inline uint64_t splitmix64(uint64_t *state) /* Steele, Lea, Flood 2014 */
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* A number below `bound` (at most 2^32), without a division. */
static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
	return ((splitmix64(state) >> 32) * bound) >> 32;
}

/* The number after the program's name; every program takes its sizes as plain numbers. */
static inline uint64_t argument(int argc, char **argv, int position)
{
	if (position >= argc) {
		fprintf(stderr, "%s: argument %d is missing\n", argv[0], position);
		exit(2);
	}
	return strtoull(argv[position], NULL, 0);
}

static int report(const char *name, bool good, double figure)
{
	printf("%s %s %.6g\n", name, good ? "verified" : "WRONG", figure);
	return good ? 0 : 1;
}

#endif
