/*
 * Conjugate gradients on a 27-point finite-element matrix in CSR form, as miniFE solves it.
 *
 *   cg SIDE ITERATIONS      SIDE^3 unknowns
 *
 * The matrix has 27 on its diagonal and -1 for each neighbour: its values and columns are read
 * in one long stream for each product, while the vector is gathered from three planes at once.
 * Checked by the true residual b - Ax, computed anew at the end.
 */
#include "common.h"

struct matrix {
	size_t rows;
	uint32_t *first, *column;
	double *value;
};

static struct matrix assemble(int side)
{
	const size_t rows = (size_t)side * side * side;
	struct matrix m = { rows, array_of(rows + 1, sizeof(*m.first)),
			    array_of(rows * 27, sizeof(*m.column)), array_of(rows * 27, sizeof(*m.value)) };
	uint32_t next = 0;

	for (size_t row = 0; row < rows; row++) {
		const int x = (int)(row % side), y = (int)(row / side % side), z = (int)(row / side / side);

		m.first[row] = next;
		for (int k = 0; k < 27; k++) {
			const int nx = x + k % 3 - 1, ny = y + k / 3 % 3 - 1, nz = z + k / 9 - 1;

			if (nx < 0 || ny < 0 || nz < 0 || nx >= side || ny >= side || nz >= side)
				continue;
			m.column[next] = (uint32_t)(((size_t)nz * side + ny) * side + nx);
			m.value[next++] = k == 13 ? 27.0 : -1.0;
		}
	}
	m.first[rows] = next;
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
	const struct matrix m = assemble((int)argument(argc, argv, 1));
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
	return report("cg", residual < 1e-3 * start, residual / start);
}
