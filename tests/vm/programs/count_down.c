/* SPDX-License-Identifier: MIT */
/* count_down N: executes 2 N instructions, and few others. */
#include <stdlib.h>

int main(int argc, char **argv)
{
	unsigned long left = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;

	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(left) : : "cc");
	return 0;
}
