/* SPDX-License-Identifier: MIT */
/*
 * HPC Challenge's PTRANS on one processor: A becomes its transpose plus B, again and again.
 *
 *   transpose SIDE ROUNDS       two matrices of SIDE^2 doubles; SIDE is a multiple of 8
 *
 * B is read in a stream; of A a tile of a row and its mirror image of a column are exchanged, so
 * that half of A's accesses go a row's length at a time, a new page each. A is symmetric up to a
 * part that changes its sign each round, B is the matrix of ones: what A must be is known.
 */
#include "common.h"

#define TILE 8

static double initial(size_t row, size_t column)
{
	return (double)row - (double)column;
}

static void exchange(double *a, const double *b, size_t side, size_t row, size_t column)
{
	for (size_t i = row; i < row + TILE; i++)
		for (size_t j = row == column ? i : column; j < column + TILE; j++) {
			const double upper = a[i * side + j], lower = a[j * side + i];

			a[i * side + j] = lower + b[i * side + j];
			a[j * side + i] = upper + b[j * side + i];
		}
}

int main(int argc, char **argv)
{
	const size_t side = argument(argc, argv, 1), rounds = argument(argc, argv, 2);
	double *a = array_of(side * side, sizeof(*a)), *b = array_of(side * side, sizeof(*b));
	size_t wrong = 0;

	for (size_t i = 0; i < side; i++)
		for (size_t j = 0; j < side; j++) {
			a[i * side + j] = initial(i, j);
			b[i * side + j] = 1;
		}
	for (size_t round = 0; round < rounds; round++)
		for (size_t i = 0; i < side; i += TILE)
			for (size_t j = i; j < side; j += TILE)
				exchange(a, b, side, i, j);
	for (size_t i = 0; i < side; i++)
		for (size_t j = 0; j < side; j++) {
			const double turned = rounds % 2 == 0 ? initial(i, j) : initial(j, i);

			wrong += a[i * side + j] != turned + (double)rounds;
		}
	return report("transpose", wrong == 0, (double)rounds);
}
