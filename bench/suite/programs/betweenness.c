/* SPDX-License-Identifier: MIT */
/*
 * Betweenness centrality from a few sources (Brandes 2001, as in the GAP benchmarks), on a graph
 * grown by preferential attachment: few vertices have most edges, so few pages most accesses.
 *
 *   betweenness VERTICES DEGREE SOURCES
 *
 * Each source takes a breadth-first search that counts shortest paths, then the same edges
 * backwards. Checked by an identity: the dependencies of one source on all other vertices add up to the
 * sum of (distance - 1) over the vertices it reaches.
 */
#include "common.h"

#define UNSEEN UINT32_MAX

struct graph {
	uint32_t vertices, *first, *neighbour;
};

/* Batagelj and Brandes 2005: an end drawn from all ends so far is drawn by degree. */
static struct graph grow(uint32_t vertices, uint32_t degree)
{
	const size_t edges = (size_t)vertices * degree;
	struct graph g = { vertices, array_of(vertices + 2, sizeof(uint32_t)),
			   array_of(2 * edges, sizeof(uint32_t)) };
	uint32_t *end = array_of(2 * edges, sizeof(uint32_t));
	uint64_t state = 3;

	for (size_t e = 0; e < edges; e++) {
		end[2 * e] = (uint32_t)(e / degree);
		end[2 * e + 1] = end[random_below(&state, 2 * e + 1)];
	}
	for (size_t i = 0; i < 2 * edges; i++)
		g.first[end[i] + 2]++;
	for (uint32_t v = 2; v < vertices + 2; v++)
		g.first[v] += g.first[v - 1];
	for (size_t i = 0; i < 2 * edges; i++) /* first[v + 1] is where the next of v goes */
		g.neighbour[g.first[end[i] + 1]++] = end[i ^ 1];
	munmap(end, 2 * edges * sizeof(uint32_t));
	return g;
}

struct search {
	uint32_t *distance, *order;
	double *paths, *dependency;
};

/* Returns how many vertices are reached; `order` has them by distance. */
static uint32_t forward(const struct graph *g, struct search *s, uint32_t source)
{
	uint32_t reached = 1;

	for (uint32_t v = 0; v < g->vertices; v++) {
		s->distance[v] = UNSEEN;
		s->paths[v] = s->dependency[v] = 0;
	}
	s->distance[source] = 0;
	s->paths[source] = 1;
	s->order[0] = source;
	for (uint32_t next = 0; next < reached; next++) {
		const uint32_t v = s->order[next];

		for (uint32_t i = g->first[v]; i < g->first[v + 1]; i++) {
			const uint32_t w = g->neighbour[i];

			if (s->distance[w] == UNSEEN) {
				s->distance[w] = s->distance[v] + 1;
				s->order[reached++] = w;
			}
			if (s->distance[w] == s->distance[v] + 1)
				s->paths[w] += s->paths[v];
		}
	}
	return reached;
}

static void backward(const struct graph *g, struct search *s, uint32_t reached)
{
	while (reached-- > 1) {
		const uint32_t w = s->order[reached];
		const double share = (1 + s->dependency[w]) / s->paths[w];

		for (uint32_t i = g->first[w]; i < g->first[w + 1]; i++) {
			const uint32_t v = g->neighbour[i];

			if (s->distance[v] + 1 == s->distance[w])
				s->dependency[v] += s->paths[v] * share;
		}
	}
}

int main(int argc, char **argv)
{
	const struct graph g = grow((uint32_t)argument(argc, argv, 1), (uint32_t)argument(argc, argv, 2));
	const size_t sources = argument(argc, argv, 3);
	struct search s = { array_of(g.vertices, sizeof(uint32_t)), array_of(g.vertices, sizeof(uint32_t)),
			    array_of(g.vertices, sizeof(double)), array_of(g.vertices, sizeof(double)) };
	double *centrality = array_of(g.vertices, sizeof(*centrality)), total = 0;
	bool good = true;
	uint64_t state = 11;

	for (size_t k = 0; k < sources; k++) {
		const uint32_t source = (uint32_t)random_below(&state, g.vertices);
		const uint32_t reached = forward(&g, &s, source);
		double sum = 0, expected = 0;

		backward(&g, &s, reached);
		for (uint32_t i = 1; i < reached; i++) {
			const uint32_t v = s.order[i];

			centrality[v] += s.dependency[v];
			sum += s.dependency[v];
			expected += s.distance[v] - 1;
		}
		good &= reached > 1 && sum > 0.999999 * expected && sum < 1.000001 * expected;
		total += sum;
	}
	return report("betweenness", good, total);
}
