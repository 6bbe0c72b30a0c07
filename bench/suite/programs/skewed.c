/* SPDX-License-Identifier: MIT */
/*
 * Products of a sparse matrix with a vector, in threads that have equally many rows of unequal
 * length: the last thread has most to do, and the others wait for it at a barrier.
 *
 *   skewed THREADS ROWS LINKS STEPS      row r has 1 + 2 * LINKS * r / ROWS entries
 *
 * All entries are 1 over the row's length, so that a vector of ones stays one.
 */
#include "common.h"
#include "threads.h"

struct system {
	size_t rows, links, steps;
	size_t *begin;           /* the first entry of each row, rows + 1 of them */
	uint32_t *column;
	double *from, *to;
};

static void product(const struct system *s, const double *x, double *y, size_t first, size_t end)
{
	for (size_t r = first; r < end; r++) {
		double sum = 0;

		for (size_t i = s->begin[r]; i < s->begin[r + 1]; i++)
			sum += x[s->column[i]];
		y[r] = sum / (double)(s->begin[r + 1] - s->begin[r]);
	}
}

static void work(struct team *team, unsigned thread)
{
	struct system *s = team->data;
	const size_t first = part_of(team, s->rows, thread);
	const size_t end = part_of(team, s->rows, thread + 1);
	uint64_t state = thread + 1;

	for (size_t i = s->begin[first]; i < s->begin[end]; i++)
		s->column[i] = (uint32_t)random_below(&state, s->rows);
	for (size_t r = first; r < end; r++)
		s->from[r] = 1;
	for (size_t step = 0; step < s->steps; step++) {
		const bool odd = step % 2;

		team_wait(team);
		product(s, odd ? s->to : s->from, odd ? s->from : s->to, first, end);
	}
}

int main(int argc, char **argv)
{
	struct system s = { .rows = argument(argc, argv, 2), .links = argument(argc, argv, 3),
			    .steps = argument(argc, argv, 4) };
	struct team team = { .threads = argument(argc, argv, 1), .work = work, .data = &s };
	const double *last;
	double sum = 0;

	s.begin = touched_array_of(s.rows + 1, sizeof(*s.begin));
	for (size_t r = 0; r < s.rows; r++)
		s.begin[r + 1] = s.begin[r] + 1 + 2 * s.links * r / s.rows;
	s.column = touched_array_of(s.begin[s.rows], sizeof(*s.column));
	s.from = touched_array_of(s.rows, sizeof(*s.from));
	s.to = touched_array_of(s.rows, sizeof(*s.to));
	team_run(&team);
	last = s.steps % 2 ? s.to : s.from;
	for (size_t r = 0; r < s.rows; r++)
		sum += last[r];
	sum /= (double)s.rows;
	return report("skewed", sum > 1 - 1e-9 && sum < 1 + 1e-9, sum);
}
