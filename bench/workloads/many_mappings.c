/* SPDX-License-Identifier: MIT */
/*
 * Has many mappings, of a page each, and measures what mmap and page faults take meanwhile.
 *
 *   many_mappings MAPPINGS
 *
 * Prints the address of the first page. For each line SECONDS on standard input it maps 64 KiB,
 * touches its pages and unmaps it, over and over, and prints in ns: mmap p50, p99, most, fault
 * p50, p99, most (elapsed time of a call, of the first write to a page), and the number of rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096UL
#define BLOCK_PAGES 16UL
/* Steps of 1/16 of an octave: figures are exact to 7 %. */
#define STEPS 1024

struct latencies {
	uint64_t counts[STEPS], total, most;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Sixteen steps per octave, from the bits below the highest one. */
static unsigned int step_of(uint64_t ns)
{
	unsigned int octave = 63 - (unsigned int)__builtin_clzll(ns | 16);

	return (octave - 4) * 16 + (unsigned int)((ns >> (octave - 4)) & 15);
}

static uint64_t ns_of(unsigned int step)
{
	return (uint64_t)(16 + step % 16) << (step / 16);
}

static void count(struct latencies *latencies, uint64_t ns)
{
	ns = ns < 16 ? 16 : ns;
	latencies->counts[step_of(ns)]++;
	latencies->total++;
	if (ns > latencies->most)
		latencies->most = ns;
}

static uint64_t quantile(const struct latencies *latencies, double share)
{
	uint64_t seen = 0;
	unsigned int step = 0;

	while (step < STEPS - 1 && (seen += latencies->counts[step]) < share * latencies->total)
		step++;
	return ns_of(step);
}

static int measure(double seconds)
{
	static struct latencies mmaps, faults;
	uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), at = 0;

	mmaps = faults = (struct latencies){ 0 };
	while (at < end) {
		uint64_t begun = now_ns();
		volatile char *block = mmap(NULL, BLOCK_PAGES * PAGE, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (block == MAP_FAILED)
			return -1;
		at = now_ns();
		count(&mmaps, at - begun);
		for (unsigned long page = 0; page < BLOCK_PAGES; page++) {
			begun = at;
			block[page * PAGE] = 1;
			at = now_ns();
			count(&faults, at - begun);
		}
		munmap((void *)block, BLOCK_PAGES * PAGE);
	}
	printf("%lu %lu %lu %lu %lu %lu %lu\n", quantile(&mmaps, 0.5), quantile(&mmaps, 0.99),
	       mmaps.most, quantile(&faults, 0.5), quantile(&faults, 0.99), faults.most,
	       mmaps.total);
	return fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned long mappings = argc == 2 ? strtoul(argv[1], NULL, 0) : 0;
	double seconds;
	char *memory;

	if (!mappings) {
		fprintf(stderr, "usage: many_mappings MAPPINGS\n");
		return 2;
	}
	memory = mmap(NULL, mappings * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		perror("many_mappings: mmap");
		return 1;
	}
	/* Every second page is another mapping; one in sixteen of the writable ones is resident. */
	for (unsigned long page = 0; page < mappings; page += 2) {
		if (page % 32 == 0)
			memory[(page + 1) * PAGE] = 1;
		if (mprotect(memory + page * PAGE, PAGE, PROT_READ)) {
			perror("many_mappings: mprotect (vm.max_map_count?)");
			return 1;
		}
	}
	printf("%p\n", (void *)memory);
	fflush(stdout);
	while (scanf("%lf", &seconds) == 1)
		if (measure(seconds))
			return 1;
	return 0;
}
