/* SPDX-License-Identifier: MIT */
#include <stddef.h>

#include "window.h"

void window_init(struct window *window, uint32_t mshrs, uint32_t instructions)
{
	window->mshrs = mshrs;
	window->instructions = instructions;
}

/*
 * Best fit: the buffer that was freed last before ready_ps, else the one that is free first. A
 * chain thus stays on one buffer and leaves the others to misses that can start earlier, though
 * they come later in program order.
 */
uint64_t *window_fill_buffer(struct window *window, uint64_t ready_ps)
{
	uint64_t *fit = NULL, *first = window->free_ps;

	for (uint32_t i = 0; i < window->mshrs; i++) {
		uint64_t *buffer = &window->free_ps[i];

		if (*buffer <= ready_ps) {
			if (!fit || *buffer > *fit)
				fit = buffer;
		} else if (*buffer < *first) {
			first = buffer;
		}
	}
	return fit ? fit : first;
}
