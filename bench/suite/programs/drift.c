/* SPDX-License-Identifier: MIT */
/*
 * A linked structure of which a window is in use, and the window drifts: sessions, caches of recent
 * items, a simulation's moving front.
 *
 *   drift NODES WINDOW STEPS      nodes of one cache line; STEPS nodes visited in all
 *
 * Each run of WINDOW/8 nodes is a ring in random order. A walker takes turns on the eight rings of
 * the window, following pointers (every miss depends on the one before) and counting visits in the
 * nodes; then the window moves on by a ring, until it has been over all. Counts must add up.
 */
#include "common.h"

#define RINGS_IN_WINDOW 8
#define TURN 512

struct node {
	struct node *next;
	uint64_t visits, pad[6];
};

static void link_ring(struct node *nodes, size_t count, uint64_t *state)
{
	for (size_t i = 0; i < count; i++)
		nodes[i].next = &nodes[i];
	for (size_t i = count - 1; i > 0; i--) { /* Sattolo's shuffle: one cycle over all */
		const size_t j = random_below(state, i);
		struct node *swapped = nodes[i].next;

		nodes[i].next = nodes[j].next;
		nodes[j].next = swapped;
	}
}

static struct node *walk(struct node *at, size_t steps)
{
	while (steps-- > 0) {
		at->visits++;
		at = at->next;
	}
	return at;
}

int main(int argc, char **argv)
{
	const size_t ring = argument(argc, argv, 2) / RINGS_IN_WINDOW;
	const size_t rings = argument(argc, argv, 1) / ring, places = rings - RINGS_IN_WINDOW + 1;
	const size_t turns = argument(argc, argv, 3) / TURN / places;
	struct node *nodes = array_of(rings * ring, sizeof(*nodes));
	struct node **at = array_of(rings, sizeof(struct node *));
	uint64_t state = 7, visits = 0;

	for (size_t r = 0; r < rings; r++) {
		link_ring(nodes + r * ring, ring, &state);
		at[r] = nodes + r * ring;
	}
	for (size_t place = 0; place < places; place++)
		for (size_t turn = 0; turn < turns; turn++) {
			const size_t r = place + random_below(&state, RINGS_IN_WINDOW);

			at[r] = walk(at[r], TURN);
		}
	for (size_t i = 0; i < rings * ring; i++)
		visits += nodes[i].visits;
	return report("drift", visits == places * turns * TURN, (double)visits);
}
