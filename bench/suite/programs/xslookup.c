/* SPDX-License-Identifier: MIT */
/*
 * XSBench's kernel: macroscopic cross-sections of materials by lookups in sorted energy grids.
 *
 *   xslookup NUCLIDES POINTS LOOKUPS    each nuclide has a grid of POINTS energies
 *
 * A lookup draws an energy and a material, then for each of its nuclides finds the energy in that
 * nuclide's grid by bisection and interpolates five reaction channels: dependent misses, then a
 * short burst. Fuel, the first material, has half of all nuclides and is drawn most often.
 * Channel c of nuclide n is linear in energy, so interpolation must give its exact value.
 */
#include "common.h"

#define MATERIALS 12
#define CHANNELS 5

struct point {
	double energy, channel[CHANNELS];
};

static double channel_at(double energy, size_t nuclide, int channel)
{
	return energy * (1 + channel) + (double)(nuclide % 16);
}

static void fill(struct point *grid, size_t nuclide, size_t points, uint64_t *state)
{
	for (size_t i = 0; i < points; i++) {
		const double jitter = (double)(splitmix64(state) >> 40) * 0x1p-24;

		grid[i].energy = i == 0 ? 0 : i == points - 1 ? 1 : ((double)i + 0.9 * jitter) / (double)points;
		for (int c = 0; c < CHANNELS; c++)
			grid[i].channel[c] = channel_at(grid[i].energy, nuclide, c);
	}
}

static void add_interpolated(const struct point *grid, size_t points, double energy, double sum[CHANNELS])
{
	size_t low = 0, high = points - 1;

	while (high - low > 1) {
		const size_t middle = (low + high) / 2;

		if (grid[middle].energy > energy)
			high = middle;
		else
			low = middle;
	}
	const struct point *p = &grid[low];
	const double share = (energy - p[0].energy) / (p[1].energy - p[0].energy);

	for (int c = 0; c < CHANNELS; c++)
		sum[c] += p[0].channel[c] + share * (p[1].channel[c] - p[0].channel[c]);
}

int main(int argc, char **argv)
{
	const size_t nuclides = argument(argc, argv, 1), points = argument(argc, argv, 2);
	const size_t lookups = argument(argc, argv, 3);
	struct point *grids = array_of(nuclides * points, sizeof(*grids));
	uint64_t state = 42;
	size_t wrong = 0;
	double total = 0;

	for (size_t n = 0; n < nuclides; n++)
		fill(grids + n * points, n, points, &state);
	for (size_t i = 0; i < lookups; i++) {
		const double energy = (double)(splitmix64(&state) >> 11) * 0x1p-53;
		const size_t material = random_below(&state, 4) == 0 ? 1 + random_below(&state, MATERIALS - 1) : 0;
		const size_t members = material == 0 ? nuclides / 2 : 4 + material;
		double sum[CHANNELS] = { 0 }, expected = 0;

		for (size_t k = 0; k < members; k++) {
			const size_t nuclide = (material * 7 + k) % nuclides;

			add_interpolated(grids + nuclide * points, points, energy, sum);
			expected += channel_at(energy, nuclide, 0);
		}
		const double error = sum[0] / expected - 1;

		wrong += error > 1e-9 || error < -1e-9;
		total += sum[CHANNELS - 1];
	}
	return report("xslookup", wrong == 0, total);
}
