/* SPDX-License-Identifier: MIT */
/*
 * A B+ tree under lookups whose keys shift: most ask for keys of one range, and the range changes,
 * as recent keys of a time series or the customers of one region do.
 *
 *   index KEYS LOOKUPS RANGES
 *
 * Leaves are allocated in extents of 32 KiB, in random order, as in a database that has grown:
 * neighbours in the tree are in one extent, extents of a range anywhere. Nine of ten lookups ask for
 * a key of the current range, a tenth of all keys, the others for any key; each adds one to the
 * value. After LOOKUPS lookups the range changes, RANGES times in all. Values must add up.
 */
#include "common.h"

#define FANOUT 31
#define FILLED 22 /* entries of a leaf after random insertions: ln 2 of it (Yao 1978) */
#define EXTENT (32768 / sizeof(struct node))

struct node {
	uint64_t count, key[FANOUT], entry[FANOUT]; /* values of a leaf, nodes' numbers elsewhere */
	uint64_t pad;
};

struct tree {
	struct node *nodes;
	size_t leaves, first_inner, used, root;
	uint32_t *extent; /* where the extents of leaves are */
};

/* A node of the level that is being built: its number and its least key. */
struct child {
	uint64_t key, number;
};

static inline uint64_t key_of(uint64_t number)
{
	return number * 16 + 5;
}

static size_t leaf_number(const struct tree *t, size_t position)
{
	return (size_t)t->extent[position / EXTENT] * EXTENT + position % EXTENT;
}

static void place_extents(struct tree *t)
{
	const size_t extents = (t->leaves + EXTENT - 1) / EXTENT;
	uint64_t state = 13;

	t->extent = array_of(extents, sizeof(*t->extent));
	for (size_t i = 0; i < extents; i++) { /* Fisher and Yates's shuffle, inside out */
		const size_t j = random_below(&state, i + 1);

		t->extent[i] = t->extent[j];
		t->extent[j] = (uint32_t)i;
	}
	t->first_inner = t->used = extents * EXTENT;
}

static void build_inner(struct tree *t, struct child *level, size_t count)
{
	while (count > 1) {
		const size_t above = (count + FANOUT - 1) / FANOUT;

		for (size_t i = 0; i < above; i++) {
			struct node *inner = &t->nodes[t->used];

			for (size_t k = i * FANOUT; k < count && k < (i + 1) * FANOUT; k++) {
				inner->key[inner->count] = level[k].key;
				inner->entry[inner->count++] = level[k].number;
			}
			level[i] = (struct child){ inner->key[0], t->used++ };
		}
		count = above;
	}
	t->root = level[0].number;
}

static struct tree build(size_t keys)
{
	struct tree t = { .leaves = (keys + FILLED - 1) / FILLED };
	struct child *level;

	place_extents(&t);
	t.nodes = array_of(t.used + t.leaves / (FANOUT - 1) + 8, sizeof(*t.nodes));
	level = array_of(t.leaves, sizeof(*level));
	for (size_t i = 0; i < t.leaves; i++) {
		const size_t number = leaf_number(&t, i);
		struct node *leaf = &t.nodes[number];

		for (uint64_t k = i * FILLED; k < keys && k < (i + 1) * FILLED; k++)
			leaf->key[leaf->count++] = key_of(k);
		level[i] = (struct child){ leaf->key[0], number };
	}
	build_inner(&t, level, t.leaves);
	munmap(level, t.leaves * sizeof(*level));
	return t;
}

/* The last entry of a node whose key is at most `key`. */
static inline size_t find(const struct node *n, uint64_t key)
{
	size_t low = 0, high = n->count;

	while (high - low > 1) {
		const size_t middle = (low + high) / 2;

		if (n->key[middle] <= key)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static bool add(struct tree *t, uint64_t key)
{
	size_t at = t->root;

	while (at >= t->first_inner)
		at = t->nodes[at].entry[find(&t->nodes[at], key)];
	struct node *leaf = &t->nodes[at];
	const size_t place = find(leaf, key);

	leaf->entry[place]++;
	return leaf->key[place] == key;
}

int main(int argc, char **argv)
{
	const size_t keys = argument(argc, argv, 1), ranges = argument(argc, argv, 3);
	const uint64_t lookups = argument(argc, argv, 2);
	struct tree t = build(keys);
	uint64_t state = 17, wrong = 0, sum = 0;

	for (size_t range = 0; range < ranges; range++) {
		const uint64_t from = random_below(&state, keys - keys / 10);

		for (uint64_t i = 0; i < lookups; i++) {
			const uint64_t number = random_below(&state, 10) ?
							from + random_below(&state, keys / 10) :
							random_below(&state, keys);

			wrong += !add(&t, key_of(number));
		}
	}
	for (size_t i = 0; i < t.leaves; i++)
		for (size_t k = 0; k < t.nodes[leaf_number(&t, i)].count; k++)
			sum += t.nodes[leaf_number(&t, i)].entry[k];
	return report("index", !wrong && sum == ranges * lookups, (double)sum);
}
