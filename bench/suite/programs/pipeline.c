/* SPDX-License-Identifier: MIT */
/*
 * A producer and a consumer: one thread writes batches of keys into a bounded queue of buffers, the
 * other counts them in a hash table. Each waits for the other where the queue is full or empty.
 *
 *   pipeline SLOTS BATCHES KEYS      a table of SLOTS counts (a power of two), KEYS keys per batch
 *
 * Half of the keys are of a sixteenth of the table. All keys must be counted.
 */
#include "common.h"
#include "threads.h"

#define BUFFERS 4

struct pipeline {
	size_t slots, batches, keys;
	uint64_t *buffer;        /* BUFFERS of keys */
	uint64_t *count;
	size_t written, read;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

/* Wait until a buffer is full (for the consumer), or free. */
static void wait_for(struct pipeline *p, bool full)
{
	pthread_mutex_lock(&p->lock);
	while (full ? p->written == p->read : p->written - p->read == BUFFERS)
		pthread_cond_wait(&p->changed, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

static void pass_on(struct pipeline *p, size_t *number)
{
	pthread_mutex_lock(&p->lock);
	++*number;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static void produce(struct pipeline *p)
{
	uint64_t state = 1;

	for (size_t batch = 0; batch < p->batches; batch++) {
		uint64_t *buffer = p->buffer + batch % BUFFERS * p->keys;

		wait_for(p, false);
		for (size_t i = 0; i < p->keys; i++) {
			const bool hot = splitmix64(&state) % 2;

			buffer[i] = random_below(&state, hot ? p->slots / 16 : p->slots);
		}
		pass_on(p, &p->written);
	}
}

static void consume(struct pipeline *p)
{
	for (size_t batch = 0; batch < p->batches; batch++) {
		const uint64_t *buffer = p->buffer + batch % BUFFERS * p->keys;

		wait_for(p, true);
		for (size_t i = 0; i < p->keys; i++)
			p->count[buffer[i] * UINT64_C(0x9e3779b97f4a7c15) % p->slots]++;
		pass_on(p, &p->read);
	}
}

static void work(struct team *team, unsigned thread)
{
	if (thread)
		consume(team->data);
	else
		produce(team->data);
}

int main(int argc, char **argv)
{
	struct pipeline p = { .slots = argument(argc, argv, 1), .batches = argument(argc, argv, 2),
			      .keys = argument(argc, argv, 3),
			      .lock = PTHREAD_MUTEX_INITIALIZER,
			      .changed = PTHREAD_COND_INITIALIZER };
	struct team team = { .threads = 2, .work = work, .data = &p };
	uint64_t counted = 0;

	p.buffer = touched_array_of(BUFFERS * p.keys, sizeof(*p.buffer));
	p.count = touched_array_of(p.slots, sizeof(*p.count));
	team_run(&team);
	for (size_t i = 0; i < p.slots; i++)
		counted += p.count[i];
	return report("pipeline", counted == p.batches * p.keys, (double)counted);
}
