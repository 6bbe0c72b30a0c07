/* SPDX-License-Identifier: MIT */
/*
 * The bare loop that hmd's mover is compared with: move_pages(2) over a range, batch by batch.
 *
 *   move_loop PID START BYTES STRIDE BATCH_ENTRIES NODE
 *
 * One entry per STRIDE bytes, all to NODE. Prints {"seconds": S, "failed": ENTRIES, "calls_ns":
 * [...]}; the arrays are filled before the clock starts.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MPOL_MF_MOVE 2 /* move_pages(2) */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void *populated(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED) {
		perror("move_loop: mmap");
		exit(1);
	}
	return memory;
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: move_loop PID START BYTES STRIDE BATCH_ENTRIES NODE\n");
		return 2;
	}
	const uint64_t start = strtoull(argv[2], NULL, 0), stride = strtoull(argv[4], NULL, 0);
	const size_t entries = strtoull(argv[3], NULL, 0) / stride;
	const size_t batch = strtoull(argv[5], NULL, 0);
	const int pid = atoi(argv[1]), node = atoi(argv[6]);
	void **page = populated(entries * sizeof(*page));
	int *nodes = populated(entries * sizeof(*nodes)), *status = populated(entries * sizeof(*status));
	uint64_t *spent = populated(entries * sizeof(*spent));
	size_t calls = 0, failed = 0;

	for (size_t i = 0; i < entries; i++) {
		page[i] = (void *)(uintptr_t)(start + i * stride);
		nodes[i] = node;
	}
	const uint64_t begun = now_ns();

	for (size_t i = 0; i < entries; i += batch) {
		const uint64_t before = now_ns();
		const size_t count = entries - i < batch ? entries - i : batch;

		if (syscall(SYS_move_pages, pid, count, page + i, nodes + i, status + i, MPOL_MF_MOVE) < 0) {
			perror("move_loop: move_pages");
			return 1;
		}
		spent[calls++] = now_ns() - before;
	}
	const uint64_t total = now_ns() - begun;

	for (size_t i = 0; i < entries; i++)
		failed += status[i] != node;
	printf("{\"seconds\": %.9f, \"failed\": %zu, \"calls_ns\": [", (double)total / 1e9, failed);
	for (size_t i = 0; i < calls; i++)
		printf("%s%" PRIu64, i ? ", " : "", spent[i]);
	puts("]}");
	return 0;
}
