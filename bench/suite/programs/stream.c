/* SPDX-License-Identifier: MIT */
/*
 * STREAM's four kernels (McCalpin) over three arrays of doubles, a fixed number of times.
 *
 *   stream WORDS ROUNDS
 *
 * Checked as STREAM does: every word has the value that the same recurrence gives on scalars.
 */
#include "common.h"

int main(int argc, char **argv)
{
	const size_t words = argument(argc, argv, 1), rounds = argument(argc, argv, 2);
	double *a = array_of(words, sizeof(*a)), *b = array_of(words, sizeof(*b));
	double *c = array_of(words, sizeof(*c));
	double va = 1, vb = 2, vc = 0;
	const double scalar = 0.41; /* below sqrt(2) - 1, so that rounds shrink nothing to infinity */
	size_t wrong = 0;

	for (size_t i = 0; i < words; i++) {
		a[i] = va;
		b[i] = vb;
	}
	for (size_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < words; i++) /* copy */
			c[i] = a[i];
		for (size_t i = 0; i < words; i++) /* scale */
			b[i] = scalar * c[i];
		for (size_t i = 0; i < words; i++) /* add */
			c[i] = a[i] + b[i];
		for (size_t i = 0; i < words; i++) /* triad */
			a[i] = b[i] + scalar * c[i];
		vc = va;
		vb = scalar * vc;
		vc = va + vb;
		va = vb + scalar * vc;
	}
	for (size_t i = 0; i < words; i++)
		wrong += a[i] != va || b[i] != vb || c[i] != vc;
	return report("stream", wrong == 0, va);
}
