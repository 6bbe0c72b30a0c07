/* SPDX-License-Identifier: MIT */
/*
 * Breadth-first search on an R-MAT graph (Chakrabarti, Zhan, Faloutsos 2004), as in Graph500.
 *
 *   bfs SCALE DEGREE SOURCES      2^SCALE vertices, DEGREE edges of each
 *
 * Edges are made twice from one seed, to be counted and to be stored, so that no list of them is
 * left behind. Checked as Graph500 does: a vertex is one further than the vertex that it was found
 * from, and its edges span one level at most.
 */
#include "common.h"

#define UNSEEN UINT32_MAX

struct graph {
	uint32_t scale, vertices, *first, *neighbour;
};

struct edge {
	uint32_t end[2];
};

/* Graph500's probabilities, .57, .19, .19 and .05; the numbers of vertices are mixed. */
static struct edge random_edge(uint32_t scale, uint64_t *state)
{
	const uint32_t mask = (UINT32_C(1) << scale) - 1;
	struct edge e = { { 0, 0 } };

	for (uint32_t level = 0; level < scale; level++) {
		const uint64_t part = random_below(state, 100);

		e.end[0] = e.end[0] << 1 | (part >= 76);
		e.end[1] = e.end[1] << 1 | ((part >= 57 && part < 76) || part >= 95);
	}
	for (size_t i = 0; i < 2; i++)
		e.end[i] = (e.end[i] * UINT32_C(0x9e3779b1)) & mask;
	return e;
}

static struct graph make(uint32_t scale, uint32_t degree)
{
	const uint32_t vertices = UINT32_C(1) << scale;
	const size_t edges = (size_t)vertices * degree;
	struct graph g = { scale, vertices, array_of((size_t)vertices + 2, sizeof(uint32_t)),
			   array_of(2 * edges, sizeof(uint32_t)) };

	for (int store = 0; store < 2; store++) {
		uint64_t state = 3;

		for (size_t i = 0; i < edges; i++) {
			const struct edge e = random_edge(scale, &state);

			for (size_t from = 0; from < 2; from++) {
				if (store) /* first[v + 1] is where the next of v goes */
					g.neighbour[g.first[e.end[from] + 1]++] = e.end[1 - from];
				else
					g.first[e.end[from] + 2]++;
			}
		}
		for (uint32_t v = 2; !store && v < vertices + 2; v++)
			g.first[v] += g.first[v - 1];
	}
	return g;
}

/* Fills distances and the order of visits; returns how many vertices are reached. */
static uint32_t search(const struct graph *g, uint32_t *distance, uint32_t *order, uint32_t source)
{
	uint32_t reached = 1;

	for (uint32_t v = 0; v < g->vertices; v++)
		distance[v] = UNSEEN;
	distance[source] = 0;
	order[0] = source;
	for (uint32_t next = 0; next < reached; next++) {
		const uint32_t v = order[next];

		for (uint32_t i = g->first[v]; i < g->first[v + 1]; i++) {
			const uint32_t w = g->neighbour[i];

			if (distance[w] == UNSEEN) {
				distance[w] = distance[v] + 1;
				order[reached++] = w;
			}
		}
	}
	return reached;
}

static bool valid(const struct graph *g, const uint32_t *distance, const uint32_t *order, uint32_t reached)
{
	bool good = true;

	for (uint32_t next = 0; next < reached; next++) {
		const uint32_t v = order[next];
		bool from = distance[v] == 0;

		for (uint32_t i = g->first[v]; i < g->first[v + 1]; i++) {
			const uint32_t w = g->neighbour[i];

			from |= distance[w] + 1 == distance[v];
			good &= distance[w] <= distance[v] + 1 && distance[v] <= distance[w] + 1;
		}
		good &= from;
	}
	return good;
}

int main(int argc, char **argv)
{
	const struct graph g = make((uint32_t)argument(argc, argv, 1), (uint32_t)argument(argc, argv, 2));
	const size_t sources = argument(argc, argv, 3);
	uint32_t *distance = array_of(g.vertices, sizeof(*distance));
	uint32_t *order = array_of(g.vertices, sizeof(*order));
	uint32_t reached = 0;
	uint64_t state = 11, total = 0;

	for (size_t k = 0; k < sources; k++) {
		uint32_t source;

		do /* a vertex with edges */
			source = (uint32_t)random_below(&state, g.vertices);
		while (g.first[source] == g.first[source + 1]);
		reached = search(&g, distance, order, source);
		total += reached;
	}
	return report("bfs", reached > 1 && valid(&g, distance, order, reached), (double)total);
}
