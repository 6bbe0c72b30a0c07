/* SPDX-License-Identifier: MIT */
/*
 * Updates of random words of a table, most of them in a hot set that moves (the microbenchmark of
 * HeMem, SOSP '21, and of others after it, with a hot set that does not stay).
 *
 *   updates contiguous|scattered PAGES HOT_PAGES UPDATES MOVES
 *
 * Nine of ten updates go to the hot pages, the others to all. After each UPDATES updates the hot
 * set moves to pages that were not hot before, MOVES times. Its pages lie side by side, or are
 * scattered over the table, each among cold ones. No update waits for another. Checked by the XOR
 * of all words, which is that of all updates.
 */
#include "common.h"

#include <string.h>

#define PAGE_WORDS 512

/* Page numbers in the order in which they become hot. */
static uint32_t *order_of(size_t pages, bool scattered)
{
	uint32_t *order = array_of(pages, sizeof(*order));
	uint64_t state = 5;

	for (size_t i = 0; i < pages; i++)
		order[i] = (uint32_t)i;
	for (size_t i = pages - 1; scattered && i > 0; i--) { /* Fisher and Yates's shuffle */
		const size_t j = random_below(&state, i + 1);
		const uint32_t swapped = order[i];

		order[i] = order[j];
		order[j] = swapped;
	}
	return order;
}

int main(int argc, char **argv)
{
	const bool scattered = argc > 1 && !strcmp(argv[1], "scattered");
	const size_t pages = argument(argc, argv, 2), hot_pages = argument(argc, argv, 3);
	const uint64_t updates = argument(argc, argv, 4), moves = argument(argc, argv, 5);
	uint64_t (*table)[PAGE_WORDS] = array_of(pages, sizeof(*table));
	const uint32_t *order = order_of(pages, scattered);
	uint64_t state = 1, all = 0, found = 0;

	if ((moves + 2) * hot_pages > pages)
		return report("updates", false, (double)pages); /* no pages to move to */
	for (size_t page = 0; page < pages; page++) /* first touch, in the order of addresses */
		for (size_t word = 0; word < PAGE_WORDS; word++)
			table[page][word] = 0;
	for (uint64_t move = 1; move <= moves + 1; move++) /* the first pages never are hot */
		for (uint64_t i = 0; i < updates; i++) {
			const uint64_t value = splitmix64(&state);
			const size_t at = random_below(&state, 10) ? /* of ten */
						  order[move * hot_pages + random_below(&state, hot_pages)] :
						  random_below(&state, pages);

			table[at][value % PAGE_WORDS] ^= value;
			all ^= value;
		}
	for (size_t page = 0; page < pages; page++)
		for (size_t word = 0; word < PAGE_WORDS; word++)
			found ^= table[page][word];
	return report("updates", found == all, (double)(updates * (moves + 1)));
}
