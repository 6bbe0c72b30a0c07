/* SPDX-License-Identifier: MIT */
/*
 * Explicit hydrodynamics on an unstructured mesh of hexahedra, with LULESH's way of using memory:
 * elements gather from their eight nodes and scatter to them through an index; nodes and elements
 * are fields of their own, each read in long streams.
 *
 *   hydro SIDE STEPS        SIDE^3 elements
 *
 * An element's pressure follows from how far its corners have drifted apart; it pushes corner k
 * outwards along the diagonal. Pushes cancel out in each element, so momentum is conserved: that
 * is checked at the end, and that something moved.
 */
#include "common.h"

static const double SIGN[8][3] = {
	{ -1, -1, -1 }, { 1, -1, -1 }, { -1, 1, -1 }, { 1, 1, -1 },
	{ -1, -1, 1 }, { 1, -1, 1 }, { -1, 1, 1 }, { 1, 1, 1 },
};

struct mesh {
	size_t elements, nodes;
	uint32_t (*corner)[8];
	double (*position)[3], (*velocity)[3], (*force)[3]; /* of nodes; positions from rest */
	double *energy, *pressure, *stretch;                /* of elements */
};

static struct mesh build(size_t side)
{
	const size_t edge = side + 1;
	struct mesh m = { side * side * side, edge * edge * edge, NULL, NULL, NULL, NULL, NULL, NULL, NULL };

	m.corner = array_of(m.elements, sizeof(*m.corner));
	m.position = array_of(m.nodes, sizeof(*m.position));
	m.velocity = array_of(m.nodes, sizeof(*m.velocity));
	m.force = array_of(m.nodes, sizeof(*m.force));
	m.energy = array_of(m.elements, sizeof(double));
	m.pressure = array_of(m.elements, sizeof(double));
	m.stretch = array_of(m.elements, sizeof(double));
	for (size_t e = 0; e < m.elements; e++) {
		const size_t x = e % side, y = e / side % side, z = e / side / side;

		for (size_t k = 0; k < 8; k++)
			m.corner[e][k] = (uint32_t)(((z + k / 4) * edge + y + k / 2 % 2) * edge + x + k % 2);
	}
	m.energy[0] = 1; /* LULESH's Sedov blast: all energy in one corner */
	return m;
}

static void gather_stretch(struct mesh *m)
{
	for (size_t e = 0; e < m->elements; e++) {
		double sum = 0;

		for (int k = 0; k < 8; k++)
			for (int d = 0; d < 3; d++)
				sum += SIGN[k][d] * m->position[m->corner[e][k]][d];
		m->stretch[e] = sum / 8;
	}
}

static void element_state(struct mesh *m, double step)
{
	for (size_t e = 0; e < m->elements; e++) {
		m->pressure[e] = m->energy[e] - m->stretch[e];
		m->energy[e] -= step * m->pressure[e] * m->stretch[e] * 0.1;
	}
}

static void scatter_force(struct mesh *m)
{
	for (size_t e = 0; e < m->elements; e++)
		for (int k = 0; k < 8; k++)
			for (int d = 0; d < 3; d++)
				m->force[m->corner[e][k]][d] += SIGN[k][d] * m->pressure[e];
}

static void move_nodes(struct mesh *m, double step)
{
	for (size_t n = 0; n < m->nodes; n++)
		for (int d = 0; d < 3; d++) {
			m->velocity[n][d] += step * m->force[n][d];
			m->position[n][d] += step * m->velocity[n][d];
			m->force[n][d] = 0;
		}
}

int main(int argc, char **argv)
{
	struct mesh m = build(argument(argc, argv, 1));
	const size_t steps = argument(argc, argv, 2);
	double momentum = 0, motion = 0;

	for (size_t i = 0; i < steps; i++) {
		gather_stretch(&m);
		element_state(&m, 0.05);
		scatter_force(&m);
		move_nodes(&m, 0.05);
	}
	for (size_t n = 0; n < m.nodes; n++)
		for (int d = 0; d < 3; d++) {
			momentum += m.velocity[n][d];
			motion += m.velocity[n][d] * m.velocity[n][d];
		}
	return report("hydro", momentum * momentum < 1e-20 * motion && motion > 0, motion);
}
