/* SPDX-License-Identifier: MIT */
/*
 * Threads on two sockets that chase pointers through memory which one of them has initialised.
 *
 *   parts partitions|local|table|handover|mixed MIB STEPS CHAINS
 *
 * partitions: each thread updates its part of the memory. local: likewise, and each has initialised
 * its own. handover: as partitions, and halfway it takes the part of a thread of the other half of
 * the threads. table: all read all of it. mixed: each updates its part and reads another one, which
 * all read, once a step. Parts have MIB MiB, a power of two. A step follows each of a thread's CHAINS, 1 to 8: so many loads overlap. Checked by the number
 * of updates, or by where the chains have arrived.
 */
#include "threads.h" /* first: it asks for GNU's functions */

#include <string.h>

#define MAX_CHAINS 8

struct cell {
	struct cell *next;
	uint64_t updates, unused[6];
};

struct job {
	struct cell *cells; /* of all parts */
	size_t count;       /* in a part: a power of two */
	uint64_t steps, sum[MAX_THREADS];
	unsigned chains;
	bool table, handover, mixed, local;
};

/* One cycle through a power of two of cells: a full-period congruential generator. */
static void link_cells(struct cell *cells, size_t count)
{
	for (size_t i = 0; i < count; i++)
		cells[i].next = &cells[(i * UINT64_C(2862933555777941757) + 3037000493) & (count - 1)];
}

/* Returns where the chains have arrived, added up; `shared`, if any, is one more that is read. */
static uint64_t walk(const struct job *job, struct cell *cells, size_t count, uint64_t steps,
		     bool update, struct cell *shared)
{
	struct cell *at[MAX_CHAINS];
	const unsigned chains = job->chains;
	uint64_t sum = 0;

	for (unsigned i = 0; i < chains; i++)
		at[i] = cells + count / chains * i;
	for (uint64_t step = 0; step < steps; step++) {
		for (unsigned i = 0; i < chains; i++) {
			at[i] = at[i]->next;
			if (update)
				at[i]->updates++;
		}
		if (shared)
			shared = shared->next;
	}
	for (unsigned i = 0; i < chains; i++)
		sum += (uint64_t)(at[i] - cells);
	return sum + (shared ? shared->updates : 0);
}

static void work(struct team *team, unsigned thread)
{
	struct job *job = team->data;
	unsigned part = thread;
	size_t all = job->count * team->threads;

	if (job->table) {
		job->sum[thread] = walk(job, job->cells, all, job->steps, false, NULL);
		return;
	}
	if (job->local)
		link_cells(job->cells + part * job->count, job->count);
	for (int half = 0; half < 2; half++) {
		struct cell *own = job->cells + part * job->count;

		job->sum[thread] += walk(job, own, job->count, job->steps / 2, true,
					 job->mixed ? job->cells + all : NULL);
		team_wait(team);
		if (job->handover)
			part = (thread + team->threads / 2) % team->threads;
	}
}

int main(int argc, char **argv)
{
	struct team team = { .threads = 4, .work = work };
	struct job job = { .count = (argument(argc, argv, 2) << 20) / sizeof(struct cell),
			   .steps = argument(argc, argv, 3),
			   .chains = (unsigned)argument(argc, argv, 4) };
	size_t all = job.count * team.threads;
	uint64_t updates = 0;
	bool good = true;

	if (job.chains < 1 || job.chains > MAX_CHAINS)
		return 2;
	job.table = !strcmp(argv[1], "table");
	job.handover = !strcmp(argv[1], "handover");
	job.mixed = !strcmp(argv[1], "mixed");
	job.local = !strcmp(argv[1], "local");
	job.cells = array_of(all + job.mixed * job.count, sizeof(struct cell));
	if (job.table)
		link_cells(job.cells, all);
	else if (!job.local)
		for (unsigned part = 0; part < team.threads + job.mixed; part++)
			link_cells(job.cells + part * job.count, job.count);
	team.data = &job;
	team_run(&team);
	for (size_t i = 0; i < all && !job.table; i++)
		updates += job.cells[i].updates;
	for (unsigned thread = 1; thread < team.threads; thread++)
		good &= job.sum[thread] == job.sum[0];
	if (!job.table)
		good &= updates == job.steps / 2 * 2 * job.chains * team.threads;
	return report("parts", good, (double)updates);
}
