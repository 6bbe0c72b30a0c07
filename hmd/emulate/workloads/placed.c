/* SPDX-License-Identifier: MIT */
/*
 * Runs a command on some CPUs, with its memory placed by a policy and its addresses not randomised.
 *
 *   placed CPUS default|bind|interleave|weighted NODES COMMAND...
 *
 * CPUS is a number, a range (1-4), or every n-th of a range as in taskset(1): 1-7:2. Threads find
 * theirs by sched_getaffinity(2).
 * NODES is a mask: 1 for node 0, 3 for nodes 0 and 1, 0 for `default`, which is no policy, the only
 * one under which kernel tiering and DAMON move pages. `weighted` interleaves by the weights in
 * /sys/kernel/mm/mempolicy/weighted_interleave/nodeN (Linux 6.9). One small process instead of
 * taskset, numactl and setarch.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	int mode; /* set_mempolicy(2) */
} policies[] = {{"default", 0}, {"bind", 2}, {"interleave", 3}, {"weighted", 6}};

static int policy_named(const char *name)
{
	for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++)
		if (!strcmp(policies[i].name, name))
			return policies[i].mode;
	fprintf(stderr, "placed: no policy %s\n", name);
	exit(2);
}

static void require(int done, const char *what)
{
	if (done < 0) {
		fprintf(stderr, "placed: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static cpu_set_t cpus_named(const char *text)
{
	cpu_set_t cpus;
	char *end;
	unsigned long first = strtoul(text, &end, 10);
	unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
	unsigned long step = *end == ':' ? strtoul(end + 1, NULL, 10) : 1;

	CPU_ZERO(&cpus);
	for (unsigned long cpu = first; step && cpu <= last && cpu < CPU_SETSIZE; cpu += step)
		CPU_SET(cpu, &cpus);
	return cpus;
}

int main(int argc, char **argv)
{
	cpu_set_t cpus;

	if (argc < 5) {
		fprintf(stderr, "usage: placed CPUS POLICY NODES COMMAND...\n");
		return 2;
	}
	int mode = policy_named(argv[2]);
	unsigned long nodes = strtoul(argv[3], NULL, 0);

	cpus = cpus_named(argv[1]);
	require(sched_setaffinity(0, sizeof(cpus), &cpus), "sched_setaffinity");
	require(syscall(SYS_set_mempolicy, mode, &nodes, 64UL), "set_mempolicy");
	require(personality(ADDR_NO_RANDOMIZE), "personality");
	execvp(argv[4], argv + 4);
	require(-1, argv[4]);
}
