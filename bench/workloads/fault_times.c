/* SPDX-License-Identifier: MIT */
/*
 * A program that no move helps, which times its page faults: fault_times KIND SECONDS
 *
 * maps    maps 4 MiB, touches each page, unmaps it, all the time
 * stream  copies 64 MiB to and fro
 * spawn   forks children that touch 1 MiB of their own and exit
 * sleep   as maps, but asleep for nine tenths of its time
 *
 * Prints rounds per second of its CPU time and of the clock, and the median, 99th and 99.9th
 * percentile of the time that the first touch of a page took, in nanoseconds.
 */
#define _GNU_SOURCE
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define AREA (4ul << 20)
#define CHILD (1ul << 20)
#define STREAM (64ul << 20)
#define BINS 100000
#define BIN_NS 10

static uint64_t bins[BINS], faults;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void touch(volatile char *page)
{
	uint64_t begun_ns = now_ns(CLOCK_MONOTONIC), took;

	*page = 1;
	took = (now_ns(CLOCK_MONOTONIC) - begun_ns) / BIN_NS;
	bins[took < BINS ? took : BINS - 1]++;
	faults++;
}

static char *map(size_t bytes)
{
	char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED)
		err(1, "mmap");
	return area;
}

static void touch_area(void)
{
	char *area = map(AREA);

	for (size_t at = 0; at < AREA; at += PAGE)
		touch(area + at);
	munmap(area, AREA);
}

static void spawn(void)
{
	pid_t child = fork();

	if (child < 0)
		err(1, "fork");
	if (child == 0) {
		char *area = map(CHILD);

		for (size_t at = 0; at < CHILD; at += PAGE)
			area[at] = 1;
		_exit(0);
	}
	waitpid(child, NULL, 0);
	touch_area();
}

static uint64_t percentile(double share)
{
	uint64_t sum = 0;

	for (uint64_t bin = 0; bin < BINS; bin++) {
		sum += bins[bin];
		if ((double)sum >= share * (double)faults)
			return bin * BIN_NS;
	}
	return BINS * BIN_NS;
}

int main(int count, char **words)
{
	const char *kind = count == 3 ? words[1] : "";
	uint64_t end_ns, begun_ns = now_ns(CLOCK_MONOTONIC), rounds = 0, cpu_ns;
	char *area = map(2 * STREAM);

	if (count != 3)
		errx(1, "fault_times maps|stream|spawn|sleep SECONDS");
	memset(area, 1, 2 * STREAM);
	cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	begun_ns = now_ns(CLOCK_MONOTONIC);
	end_ns = begun_ns + (uint64_t)(atof(words[2]) * 1e9);
	while (now_ns(CLOCK_MONOTONIC) < end_ns) {
		if (strcmp(kind, "stream") == 0)
			memcpy(area + (rounds & 1) * STREAM, area + (~rounds & 1) * STREAM, STREAM);
		else if (strcmp(kind, "spawn") == 0)
			spawn();
		else
			touch_area();
		if (strcmp(kind, "sleep") == 0)
			usleep(9000);
		rounds++;
	}
	if (faults == 0)
		touch_area();
	cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
	printf("%g %g %lu %lu %lu\n", (double)rounds * 1e9 / (double)cpu_ns,
	       (double)rounds * 1e9 / (double)(now_ns(CLOCK_MONOTONIC) - begun_ns),
	       percentile(0.5), percentile(0.99), percentile(0.999));
	return 0;
}
