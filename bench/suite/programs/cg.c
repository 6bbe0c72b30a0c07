/* SPDX-License-Identifier: MIT */
/*
 * Conjugate gradients on the 7-point matrix of an unstructured mesh in CSR form: miniFE's solver.
 *
 *   cg SIDE ITERATIONS      SIDE^3 unknowns
 *
 * Unknowns are numbered at random, as a mesh generator leaves them. The diagonal is 7, -1 stands
 * for each neighbour: values and columns are read in one long stream for each product, while the
 * vector is gathered from all over. Checked by the true residual b - Ax, computed again at the end:
 * it must have fallen, and be the one that the iteration has kept track of.
 */
#include "common.h"

struct matrix {
	size_t rows;
	uint32_t *first, *column;
	double *value;
};

/* Numbers below count in random order (Fisher and Yates). */
static uint32_t *shuffled(size_t count)
{
	uint32_t *number = array_of(count, sizeof(*number));
	uint64_t state = 5;

	for (size_t i = 0; i < count; i++) {
		const size_t j = random_below(&state, i + 1);

		number[i] = number[j];
		number[j] = (uint32_t)i;
	}
	return number;
}

static struct matrix assemble(size_t side)
{
	const size_t rows = side * side * side, step[3] = { 1, side, side * side };
	struct matrix m = { rows, array_of(rows + 1, sizeof(*m.first)),
			    array_of(rows * 7, sizeof(*m.column)), array_of(rows * 7, sizeof(*m.value)) };
	uint32_t *number = shuffled(rows), *cell = array_of(rows, sizeof(*cell));
	uint32_t next = 0;

	for (size_t i = 0; i < rows; i++)
		cell[number[i]] = (uint32_t)i;
	for (size_t row = 0; row < rows; row++) {
		const size_t here = cell[row];

		m.first[row] = next;
		m.column[next] = (uint32_t)row;
		m.value[next++] = 7;
		for (int d = 0; d < 3; d++) {
			const size_t place = here / step[d] % side;

			if (place > 0) {
				m.column[next] = number[here - step[d]];
				m.value[next++] = -1;
			}
			if (place < side - 1) {
				m.column[next] = number[here + step[d]];
				m.value[next++] = -1;
			}
		}
	}
	m.first[rows] = next;
	munmap(number, rows * sizeof(*number));
	munmap(cell, rows * sizeof(*cell));
	return m;
}

static void multiply(const struct matrix *m, const double *x, double *y)
{
	for (size_t row = 0; row < m->rows; row++) {
		double sum = 0;

		for (uint32_t i = m->first[row]; i < m->first[row + 1]; i++)
			sum += m->value[i] * x[m->column[i]];
		y[row] = sum;
	}
}

static double dot(const double *x, const double *y, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += x[i] * y[i];
	return sum;
}

int main(int argc, char **argv)
{
	const struct matrix m = assemble(argument(argc, argv, 1));
	const size_t iterations = argument(argc, argv, 2), n = m.rows;
	double *x = array_of(n, sizeof(*x)), *r = array_of(n, sizeof(*r));
	double *p = array_of(n, sizeof(*p)), *q = array_of(n, sizeof(*q));
	double rr, start, residual = 0;

	for (size_t i = 0; i < n; i++)
		r[i] = p[i] = 1.0 + (double)(i % 7); /* the right-hand side; x is 0 */
	start = rr = dot(r, r, n);
	for (size_t k = 0; k < iterations; k++) {
		multiply(&m, p, q);
		const double alpha = rr / dot(p, q, n), old = rr;

		for (size_t i = 0; i < n; i++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[i];
		}
		rr = dot(r, r, n);
		for (size_t i = 0; i < n; i++)
			p[i] = r[i] + rr / old * p[i];
	}
	multiply(&m, x, q);
	for (size_t i = 0; i < n; i++) {
		const double error = 1.0 + (double)(i % 7) - q[i];

		residual += error * error;
	}
	const double drift = (residual - rr) / start;

	return report("cg", residual < 0.1 * start && drift < 1e-12 && drift > -1e-12, residual / start);
}
