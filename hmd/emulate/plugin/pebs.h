/* SPDX-License-Identifier: MIT */
/*
 * Emulated PEBS: one vCPU's load and store counters, and its ring of perf records.
 *
 * Records and ring are those of perf_event_open(2): PERF_RECORD_SAMPLE with IP, TID, TIME, ADDR,
 * CPU, PERIOD, READ, WEIGHT, DATA_SRC and PHYS_ADDR, so that the reader of real PMU rings reads
 * these too. Differences, because the PMU lacks the kernel's information:
 *   pid       the address space (cr3 >> 12); tid is 0
 *   time      the vCPU's modelled clock, nanoseconds
 *   read      instructions that the vCPU has executed, kernel's included
 *   weight    latency in modelled nanoseconds; a real PMU has cycles
 */
#ifndef HMD_PLUGIN_PEBS_H
#define HMD_PLUGIN_PEBS_H

#include <stdbool.h>
#include <stdint.h>

/* The fields of struct perf_event_mmap_page that a ring's reader uses, at the kernel's offsets. */
struct perf_ring_page {
	uint32_t version, compat_version;
	uint8_t unused[1016];
	uint64_t data_head;   /* written by the producer; never wraps */
	uint64_t data_tail;   /* written by the reader */
	uint64_t data_offset; /* from this page */
	uint64_t data_size;
};

enum pebs_event { PEBS_LOAD, PEBS_STORE };

/*
 * How a load becomes one that the counter counts.
 *   counted  every miss is (MEM_LOAD_RETIRED.L3_MISS)
 *   tagged   load latency: the CPU follows one load at a time, chosen at random, and counts it if it
 *            was slow (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3B,
 *            18.9.4.2). While its tag is in flight no other load is chosen, so that the misses that a
 *            count stands for depend on how far the program's misses overlap.
 *   ops      AMD's IBS: the period counts dispatched ops, here instructions, and what is at its end
 *            is tagged, whatever it is (AMD64 Architecture Programmer's Manual, volume 2, 13.3.2). One
 *            that is no miss costs its interrupt and gives no record.
 */
enum pebs_selection { PEBS_COUNTED, PEBS_TAGGED, PEBS_OPS };

/* The tags of a vCPU's loads. */
struct pebs_tag {
	uint64_t busy_until_ps; /* of a tagged load in flight */
	uint64_t next_op;       /* instruction that is tagged next; 0: not chosen yet */
	uint64_t random;
};

static inline uint64_t pebs_random(struct pebs_tag *tag)
{
	/* xorshift64 (Marsaglia, Xorshift RNGs, 2003) */
	uint64_t x = tag->random ? tag->random : 0x9e3779b97f4a7c15ull;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return tag->random = x;
}

/* Whether a load that misses takes the tag: it is free, and one in `interval` is chosen. */
static inline bool pebs_tag_load(struct pebs_tag *tag, uint64_t clock_ps, uint64_t latency_ps,
				 uint32_t interval)
{
	if (clock_ps < tag->busy_until_ps || (interval > 1 && pebs_random(tag) % interval))
		return false;
	tag->busy_until_ps = clock_ps + latency_ps;
	return true;
}

/*
 * Whether the instruction is the op at the end of a period. *untagged are the ends of periods since
 * the last call, at other instructions. Four bits of a period are random, as the CPU makes them, so
 * that it does not follow a loop; the period is 16 at least.
 */
static inline bool pebs_tag_op(struct pebs_tag *tag, uint64_t op, uint64_t period,
			       uint64_t *untagged)
{
	*untagged = 0;
	if (period < 16)
		return false;
	if (!tag->next_op)
		tag->next_op = op + period;
	if (tag->next_op < op) {
		*untagged = 1 + (op - 1 - tag->next_op) / period;
		tag->next_op += *untagged * period + pebs_random(tag) % 16 - 8;
	}
	if (tag->next_op != op)
		return false;
	tag->next_op += period + pebs_random(tag) % 16 - 8;
	return true;
}

/* What the PMU says of where the data was: of stores, only whether the first level had it. */
enum pebs_source { PEBS_MEMORY, PEBS_FILL_BUFFER, PEBS_L1_HIT, PEBS_L1_MISS };

struct pebs_sample {
	uint64_t ip, time_ns, address, period, instructions, latency_ns, physical;
	uint32_t address_space, cpu;
	enum pebs_event event;
	enum pebs_source source; /* fill buffer: a prefetch that the load had to wait for */
};

/* A writer. It indexes memory by its own copies, never by words that the guest can overwrite. */
struct pebs_ring {
	struct perf_ring_page *page;
	uint64_t head, data_bytes;
	uint64_t lost; /* since the last record that fitted */
};

/* Make a page an empty ring of data_bytes (a power of two) that follow it, and its writer. */
void pebs_ring_init(struct pebs_ring *ring, struct perf_ring_page *page, uint64_t data_bytes);

/* Write a sample, after a PERF_RECORD_LOST if earlier ones did not fit; false without room. */
bool pebs_write(struct pebs_ring *ring, const struct pebs_sample *sample);

/* Count an event; true when it is the period-th. A shorter period takes effect at once. */
static inline bool pebs_overflow(uint64_t *count, uint64_t period)
{
	if (!period || ++*count < period)
		return false;
	*count = 0;
	return true;
}

#endif
