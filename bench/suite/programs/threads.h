/* SPDX-License-Identifier: MIT */
/*
 * Threads of the suite's parallel programs: one per CPU of the process, which wait for each other in
 * the kernel. A replay can shift waits in the kernel, not those that poll (GOMP_SPINCOUNT=0 is
 * OpenMP's equivalent).
 */
#ifndef HMD_SUITE_THREADS_H
#define HMD_SUITE_THREADS_H

#include "common.h" /* first: it asks for GNU's functions */

#include <pthread.h>
#include <sched.h>

#define MAX_THREADS 16

struct team {
	unsigned threads;
	void (*work)(struct team *team, unsigned thread);
	void *data;
	pthread_barrier_t barrier;
};

struct member {
	struct team *team;
	unsigned thread;
	pthread_t handle;
};

/*
 * Memory as array_of() gives it, touched by one thread: those that fault at once spin for the
 * kernel's locks, for as long as the host of an emulated machine keeps the holder waiting.
 */
static void *touched_array_of(size_t count, size_t size)
{
	volatile char *start = array_of(count, size);

	for (size_t at = 0; at < count * size; at += 4096)
		start[at] = 0;
	return (void *)start;
}

static inline void team_wait(struct team *team)
{
	pthread_barrier_wait(&team->barrier);
}

/* The part of `count` things that is a thread's: [first, end). */
static inline size_t part_of(const struct team *team, size_t count, unsigned thread)
{
	return count * thread / team->threads;
}

/* The n-th CPU of a set; none where it has fewer: the thread may then run on any. */
static cpu_set_t nth_cpu(const cpu_set_t *all, unsigned nth)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, all) && !nth--)
			CPU_SET(cpu, &one);
	return one;
}

static void *member_run(void *argument)
{
	struct member *self = argument;

	self->team->work(self->team, self->thread);
	return NULL;
}

/* On its CPU from the start: the kernel does not balance isolated CPUs. */
static void member_start(struct member *member, const cpu_set_t *all)
{
	const cpu_set_t one = nth_cpu(all, member->thread);
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	if (CPU_COUNT(&one))
		pthread_attr_setaffinity_np(&attributes, sizeof(one), &one);
	if (pthread_create(&member->handle, &attributes, member_run, member)) {
		fprintf(stderr, "cannot start thread %u\n", member->thread);
		exit(2);
	}
	pthread_attr_destroy(&attributes);
}

/* Run the work in threads, the caller among them; returns when all have ended. */
static void team_run(struct team *team)
{
	struct member member[MAX_THREADS];
	cpu_set_t all, first;

	if (team->threads < 1 || team->threads > MAX_THREADS) {
		fprintf(stderr, "take 1 to %d threads\n", MAX_THREADS);
		exit(2);
	}
	sched_getaffinity(0, sizeof(all), &all);
	pthread_barrier_init(&team->barrier, NULL, team->threads);
	for (unsigned i = 0; i < team->threads; i++)
		member[i] = (struct member){ .team = team, .thread = i };
	for (unsigned i = 1; i < team->threads; i++)
		member_start(&member[i], &all);
	first = nth_cpu(&all, 0);
	sched_setaffinity(0, sizeof(first), &first);
	member_run(&member[0]);
	for (unsigned i = 1; i < team->threads; i++)
		pthread_join(member[i].handle, NULL);
}

#endif
