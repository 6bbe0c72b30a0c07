/* SPDX-License-Identifier: MIT */
/*
 * A program that times its own accesses while its pages move.
 *
 *   timed_accesses MIB small|huge INTERVAL_NS
 *
 * Maps and writes memory of 4 KiB pages or of huge pages, and prints {"start": ADDRESS, "bytes": N,
 * "pid": PID}. Each line of its input begins or ends a measurement. During one it writes a word of a
 * random page every INTERVAL_NS by schedule: an access that comes late because the one before it
 * waited counts from when it was due, so that one long wait does not pass as one slow access. At its
 * end it prints {"accesses": N, "p50_ns": N, "p99_ns": N, "most_ns": N}.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT (UINT64_C(2) << 20)
#define PAGE UINT64_C(4096)
#define MOST_ACCESSES (UINT64_C(1) << 22)
#define ACCESSES_PER_POLL 64

static uint32_t *taken_ns;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void *mapped(uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("timed_accesses: mmap");
		exit(1);
	}
	return memory;
}

static int asked(void) /* whether a line of input waits; reads it, and ends with the input */
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	char byte;

	if (poll(&input, 1, 0) <= 0)
		return 0;
	do
		if (read(0, &byte, 1) <= 0)
			exit(0);
	while (byte != '\n');
	return 1;
}

static uint64_t measured(volatile uint64_t *words, uint64_t pages, uint64_t interval_ns)
{
	uint64_t state = UINT64_C(0x9e3779b97f4a7c15), count = 0, due = now_ns();

	while (count < MOST_ACCESSES) {
		if (count % ACCESSES_PER_POLL == 0 && asked())
			break;
		state ^= state >> 12; /* xorshift64*, Vigna 2016 */
		state ^= state << 25;
		state ^= state >> 27;
		while (now_ns() < due)
			;
		words[(state * UINT64_C(2685821657736338717) >> 32) % pages * (PAGE / sizeof(*words))]++;
		const uint64_t late = now_ns() - due;

		taken_ns[count++] = late < UINT32_MAX ? (uint32_t)late : UINT32_MAX;
		due += interval_ns;
	}
	return count;
}

static int ascending(const void *one, const void *other)
{
	const uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;

	return (a > b) - (a < b);
}

static uint32_t quantile(uint64_t count, double share)
{
	return count ? taken_ns[(uint64_t)((double)(count - 1) * share)] : 0;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: timed_accesses MIB small|huge INTERVAL_NS\n");
		return 2;
	}
	const uint64_t bytes = strtoull(argv[1], NULL, 0) << 20;
	const uint64_t interval_ns = strtoull(argv[3], NULL, 0);
	uint64_t start = (uint64_t)(uintptr_t)mapped(bytes + ALIGNMENT);

	start = (start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	madvise((void *)(uintptr_t)start, bytes, strcmp(argv[2], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	memset((void *)(uintptr_t)start, 1, bytes);
	taken_ns = mapped(MOST_ACCESSES * sizeof(*taken_ns));
	memset(taken_ns, 1, MOST_ACCESSES * sizeof(*taken_ns));
	printf("{\"start\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"pid\": %d}\n", start, bytes, getpid());
	fflush(stdout);
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };

		poll(&input, 1, -1);
		if (!asked())
			continue;
		const uint64_t count = measured((uint64_t *)(uintptr_t)start, bytes / PAGE, interval_ns);

		qsort(taken_ns, count, sizeof(*taken_ns), ascending);
		printf("{\"accesses\": %" PRIu64 ", \"p50_ns\": %" PRIu32 ", \"p99_ns\": %" PRIu32
		       ", \"most_ns\": %" PRIu32 "}\n",
		       count, quantile(count, 0.5), quantile(count, 0.99), quantile(count, 1.0));
		fflush(stdout);
	}
}
