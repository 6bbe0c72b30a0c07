/* SPDX-License-Identifier: MIT */
/*
 * Jacobi iterations on a plane, in OpenMP: rows are shared out to threads, and one thread has
 * initialised all of them.
 *
 *   stencil SIDE ITERATIONS    SIDE^2 doubles, twice
 *
 * Checked by the sum of the plane, which stays what it was, as its border wraps around.
 */
#include <math.h>

#include "common.h"

int main(int argc, char **argv)
{
	const size_t side = argument(argc, argv, 1), rounds = argument(argc, argv, 2);
	double *from = array_of(side * side, sizeof(*from)), *to = array_of(side * side, sizeof(*to));
	double before = 0, after = 0;

	for (size_t i = 0; i < side * side; i++) {
		from[i] = (double)(i % 1013);
		to[i] = 0;
		before += from[i];
	}
	for (size_t round = 0; round < rounds; round++) {
#pragma omp parallel for schedule(static)
		for (size_t row = 0; row < side; row++) {
			const double *here = from + row * side;
			const double *up = from + (row ? row - 1 : side - 1) * side;
			const double *down = from + (row + 1 < side ? row + 1 : 0) * side;

			for (size_t i = 0; i < side; i++)
				to[row * side + i] = (here[i ? i - 1 : side - 1] + up[i] + down[i] +
						      here[i + 1 < side ? i + 1 : 0]) / 4;
		}
		double *swap = from;

		from = to;
		to = swap;
	}
	for (size_t i = 0; i < side * side; i++)
		after += from[i];
	return report("stencil", fabs(after - before) < 1e-6 * before, after);
}
