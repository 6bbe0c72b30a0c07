/* SPDX-License-Identifier: MIT */
/*
 * Random misses for ever: loads from one half of its memory, stores into the other.
 *
 *     gather MIB [fork]
 *
 * Prints "PID LOADS STORES BYTES" (addresses and size of the halves) once its memory is filled.
 * With fork, a child with the same memory does the same and prints its line too.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define LINE_WORDS 8

int main(int argc, char **argv)
{
	size_t half = argc > 1 ? strtoul(argv[1], NULL, 10) << 19 : 0;
	uint64_t state = 88172645463325252u, sum = 0, *loads, *stores;
	size_t lines = half / (LINE_WORDS * sizeof(uint64_t));

	if (!half)
		return 2;
	loads = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (loads == MAP_FAILED)
		return 1;
	madvise(loads, 2 * half, MADV_NOHUGEPAGE);
	stores = loads + half / sizeof(uint64_t);
	memset(loads, 1, 2 * half);
	if (argc > 2 && fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		state += (uint64_t)getpid() << 20;
	}
	printf("%d %" PRIuPTR " %" PRIuPTR " %zu\n", getpid(), (uintptr_t)loads, (uintptr_t)stores, half);
	fflush(stdout);
	for (;;) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		sum += loads[state % lines * LINE_WORDS];
		stores[(state >> 20) % lines * LINE_WORDS] = sum;
	}
}
