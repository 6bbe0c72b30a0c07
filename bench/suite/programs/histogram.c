/* SPDX-License-Identifier: MIT */
/*
 * Counting in threads: each draws keys, counts most of them in a table of its own and the others in
 * one table that all threads share. Tables are merged at the end of each of the rounds.
 *
 *   histogram THREADS WORDS KEYS ROUNDS     WORDS of each table, KEYS per thread and round
 *
 * The keys of a thread lie in one half of its table in even rounds and in the other in odd ones.
 * Checked: the shared table has counted every key.
 */
#include "common.h"
#include "threads.h"

struct counting {
	size_t words, keys, rounds;
	uint32_t *own[MAX_THREADS];
	uint32_t *shared;
};

static void count(struct counting *c, unsigned thread, size_t round)
{
	const size_t half = c->words / 2, first = round % 2 * half;
	uint64_t state = thread * 1000 + round;
	uint32_t *own = c->own[thread];

	for (size_t i = 0; i < c->keys; i++) {
		const size_t key = first + random_below(&state, half);

		if (i % 4)
			own[key]++;
		else
			__atomic_fetch_add(&c->shared[key], 1, __ATOMIC_RELAXED);
	}
}

/* A thread's part of all tables. */
static void merge(struct counting *c, unsigned threads, size_t from, size_t to)
{
	for (unsigned thread = 0; thread < threads; thread++)
		for (size_t word = from; word < to; word++) {
			c->shared[word] += c->own[thread][word];
			c->own[thread][word] = 0;
		}
}

static void work(struct team *team, unsigned thread)
{
	struct counting *c = team->data;

	for (size_t round = 0; round < c->rounds; round++) {
		count(c, thread, round);
		team_wait(team);
		merge(c, team->threads, part_of(team, c->words, thread),
		      part_of(team, c->words, thread + 1));
		team_wait(team);
	}
}

int main(int argc, char **argv)
{
	struct counting c = { .words = argument(argc, argv, 2), .keys = argument(argc, argv, 3),
			      .rounds = argument(argc, argv, 4) };
	struct team team = { .threads = argument(argc, argv, 1), .work = work, .data = &c };
	size_t counted = 0;

	c.shared = touched_array_of(c.words, sizeof(*c.shared));
	for (unsigned i = 0; i < team.threads && i < MAX_THREADS; i++)
		c.own[i] = touched_array_of(c.words, sizeof(*c.shared));
	team_run(&team);
	for (size_t i = 0; i < c.words; i++)
		counted += c.shared[i];
	return report("histogram", counted == c.keys * c.rounds * team.threads, (double)counted);
}
