/* SPDX-License-Identifier: MIT */
/*
 * PageRank by pulling, in threads that share the vertices: each sums the ranks of the vertices that
 * link to its own, at random places of one array, and streams over the links.
 *
 *   ranks THREADS VERTICES LINKS STEPS      LINKS per vertex
 *
 * Links are random, and a few vertices have most of those that leave. A vertex gives its rank in
 * equal parts to those it links to, and what vertices without such links have is lost: the sum of
 * all ranks must stay between 0.15 and 1, and no link may be missing.
 */
#include "common.h"
#include "threads.h"

#define DAMPING 0.85

struct graph {
	size_t vertices, links, steps;
	uint32_t *source;        /* links per vertex: where they come from */
	uint32_t *out;           /* links that leave each vertex */
	float *rank, *given;     /* of each vertex; what it gives per link */
};

static void link_up(struct graph *g, size_t from, size_t to)
{
	for (size_t v = from; v < to; v++) {
		uint64_t state = v;

		for (size_t i = 0; i < g->links; i++) {
			/* The product of two uniform numbers: low vertices are linked from often. */
			const uint64_t u = random_below(&state, g->vertices);
			const uint64_t hub = random_below(&state, u + 1);

			g->source[v * g->links + i] = (uint32_t)hub;
			__atomic_fetch_add(&g->out[hub], 1, __ATOMIC_RELAXED);
		}
	}
}

static void give(struct graph *g, size_t from, size_t to)
{
	for (size_t v = from; v < to; v++)
		g->given[v] = g->out[v] ? g->rank[v] / (float)g->out[v] : 0;
}

static void pull(struct graph *g, size_t from, size_t to)
{
	for (size_t v = from; v < to; v++) {
		const uint32_t *source = &g->source[v * g->links];
		float sum = 0;

		for (size_t i = 0; i < g->links; i++)
			sum += g->given[source[i]];
		g->rank[v] = (float)(1 - DAMPING) / (float)g->vertices + (float)DAMPING * sum;
	}
}

static void work(struct team *team, unsigned thread)
{
	struct graph *g = team->data;
	const size_t from = part_of(team, g->vertices, thread);
	const size_t to = part_of(team, g->vertices, thread + 1);

	link_up(g, from, to);
	for (size_t v = from; v < to; v++)
		g->rank[v] = 1 / (float)g->vertices;
	for (size_t i = 0; i < g->steps; i++) {
		team_wait(team);
		give(g, from, to);
		team_wait(team);
		pull(g, from, to);
	}
}

static double sum_of(const float *rank, size_t count)
{
	double sum = 0;

	for (size_t v = 0; v < count; v++)
		sum += rank[v];
	return sum;
}

int main(int argc, char **argv)
{
	struct graph g = { .vertices = argument(argc, argv, 2), .links = argument(argc, argv, 3),
			   .steps = argument(argc, argv, 4) };
	struct team team = { .threads = argument(argc, argv, 1), .work = work, .data = &g };
	size_t links = 0;
	double total;

	g.source = touched_array_of(g.vertices * g.links, sizeof(*g.source));
	g.out = touched_array_of(g.vertices, sizeof(*g.out));
	g.rank = touched_array_of(g.vertices, sizeof(*g.rank));
	g.given = touched_array_of(g.vertices, sizeof(*g.given));
	team_run(&team);
	for (size_t v = 0; v < g.vertices; v++)
		links += g.out[v];
	total = sum_of(g.rank, g.vertices);
	return report("ranks",
		      links == g.vertices * g.links && total > 1 - DAMPING && total < 1.01,
		      total);
}
