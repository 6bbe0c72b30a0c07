/* SPDX-License-Identifier: MIT */
/*
 * Reserves unmovable memory of one node: pages in the buffer of a pipe, which are on no LRU list,
 * so that neither reclaim nor demotion, DAMON or compaction finds them (hugetlbpage.rst does the
 * same in steps of 2 MiB).
 *
 *   set_aside NODE
 *
 * Each line of standard input is the number of bytes to hold from now on; the answer, once they
 * are held, is a line with that number. At end of input it frees all memory and exits.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_BIND 2 /* set_mempolicy(2) */
#define PAGE 4096UL
#define PIPE_BYTES (32UL << 20)

static void require(long done, const char *what)
{
	if (done < 0) {
		fprintf(stderr, "set_aside: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* When memory runs out, the OOM killer must select the measured process, not this one. */
static void keep_from_oom_killer(void)
{
	FILE *file = fopen("/proc/self/oom_score_adj", "w");

	require(file && fputs("-1000", file) >= 0 && !fclose(file) ? 0 : -1, "oom_score_adj");
}

int main(int argc, char **argv)
{
	static char page[PAGE];
	unsigned long held = 0, wanted;
	int ends[2];

	if (argc != 2) {
		fprintf(stderr, "usage: set_aside NODE\n");
		return 2;
	}
	unsigned long nodes = 1UL << strtoul(argv[1], NULL, 0);

	keep_from_oom_killer();
	require(pipe2(ends, O_NONBLOCK), "pipe");
	require(fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES), "F_SETPIPE_SZ");
	require(syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 64UL), "set_mempolicy");
	while (scanf("%lu", &wanted) == 1) {
		for (; held < wanted / PAGE; held++)
			require(write(ends[1], page, PAGE), "write");
		for (; held > wanted / PAGE; held--)
			require(read(ends[0], page, PAGE), "read");
		printf("%lu\n", held * PAGE);
		fflush(stdout);
	}
	return 0;
}
