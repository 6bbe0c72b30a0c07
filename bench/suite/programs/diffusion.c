/* SPDX-License-Identifier: MIT */
/*
 * Diffusion of heat in a cube by Jacobi's iteration over seven points, in threads that share the
 * planes: every point is read in long streams and written once per step, and a plane at the edge
 * of a part is read by two threads.
 *
 *   diffusion THREADS SIDE STEPS
 *
 * The cube's surface is kept at 0 and its inside begins at 1, so the heat decreases at each step,
 * symmetrically: both are checked.
 */
#include "common.h"
#include "threads.h"

struct cube {
	size_t side, steps;
	double *now, *next;
};

static size_t at(const struct cube *c, size_t x, size_t y, size_t z)
{
	return (z * c->side + y) * c->side + x;
}

static void fill(struct cube *c, size_t from, size_t to)
{
	const size_t last = c->side - 1;

	for (size_t z = from; z < to; z++)
		for (size_t y = 0; y < c->side; y++)
			for (size_t x = 0; x < c->side; x++) {
				const bool inside = x && y && z && x < last && y < last && z < last;

				c->now[at(c, x, y, z)] = c->next[at(c, x, y, z)] = inside;
			}
}

static void step(const double *now, double *next, const struct cube *c, size_t from, size_t to)
{
	const size_t row = c->side, plane = row * row;

	for (size_t z = from; z < to; z++)
		for (size_t y = 1; y < c->side - 1; y++)
			for (size_t i = at(c, 1, y, z); i < at(c, c->side - 1, y, z); i++)
				next[i] = (now[i - 1] + now[i + 1] + now[i - row] + now[i + row] +
					   now[i - plane] + now[i + plane]) / 6;
}

static void work(struct team *team, unsigned thread)
{
	struct cube *c = team->data;
	const size_t from = part_of(team, c->side, thread), to = part_of(team, c->side, thread + 1);
	double *now = c->now, *next = c->next;

	fill(c, from, to);
	for (size_t i = 0; i < c->steps; i++) {
		double *old = now;

		team_wait(team);
		step(now, next, c, from ? from : 1, to < c->side ? to : c->side - 1);
		now = next;
		next = old;
	}
}

static double heat(const double *points, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += points[i];
	return sum;
}

int main(int argc, char **argv)
{
	struct cube c = { .side = argument(argc, argv, 2), .steps = argument(argc, argv, 3) };
	struct team team = { .threads = argument(argc, argv, 1), .work = work, .data = &c };
	const size_t count = c.side * c.side * c.side, inner = c.side - 2;
	const double *end;
	double left, low, high;

	c.now = touched_array_of(count, sizeof(double));
	c.next = touched_array_of(count, sizeof(double));
	team_run(&team);
	end = c.steps % 2 ? c.next : c.now;
	left = heat(end, count);
	low = end[at(&c, 1, 1, 1)];
	high = end[at(&c, inner, inner, inner)];
	return report("diffusion",
		      left > 0 && left < (double)(inner * inner * inner) &&
			      low > 0 && high > low * (1 - 1e-9) && high < low * (1 + 1e-9),
		      left);
}
