/* SPDX-License-Identifier: MIT */
#include <linux/perf_event.h>
#include <stddef.h>
#include <string.h>

#include "pebs.h"

_Static_assert(offsetof(struct perf_ring_page, data_head) ==
		       offsetof(struct perf_event_mmap_page, data_head),
	       "perf's layout");
_Static_assert(offsetof(struct perf_ring_page, data_size) ==
		       offsetof(struct perf_event_mmap_page, data_size),
	       "perf's layout");

#define RING_PAGE_BYTES 4096

/* In the order that perf_event_open(2) gives the fields of this sample_type. */
struct sample_record {
	struct perf_event_header header;
	uint64_t ip;
	uint32_t pid, tid;
	uint64_t time;
	uint64_t addr;
	uint32_t cpu, reserved;
	uint64_t period;
	uint64_t instructions; /* READ, of an event without read_format */
	uint64_t weight;
	uint64_t data_src;
	uint64_t phys_addr;
};

struct lost_record {
	struct perf_event_header header;
	uint64_t id;
	uint64_t lost;
};

/* Level by the older field and by the newer one. Which memory it was stays unsaid, as with CXL. */
struct level {
	uint64_t lvl, lvl_num;
};

static const struct level levels[] = {
	[PEBS_MEMORY] = { PERF_MEM_LVL_MISS | PERF_MEM_LVL_L3, PERF_MEM_LVLNUM_RAM },
	[PEBS_FILL_BUFFER] = { PERF_MEM_LVL_HIT | PERF_MEM_LVL_LFB, PERF_MEM_LVLNUM_LFB },
	[PEBS_L1_HIT] = { PERF_MEM_LVL_HIT | PERF_MEM_LVL_L1, PERF_MEM_LVLNUM_L1 },
	[PEBS_L1_MISS] = { PERF_MEM_LVL_MISS | PERF_MEM_LVL_L1, PERF_MEM_LVLNUM_NA },
};

static uint64_t data_source(const struct pebs_sample *sample)
{
	union perf_mem_data_src source = {
		.mem_op = sample->event == PEBS_STORE ? PERF_MEM_OP_STORE : PERF_MEM_OP_LOAD,
		.mem_snoop = PERF_MEM_SNOOP_NA,
		.mem_lock = PERF_MEM_LOCK_NA,
		.mem_dtlb = PERF_MEM_TLB_NA,
		.mem_lvl = levels[sample->source].lvl,
		.mem_lvl_num = levels[sample->source].lvl_num,
	};

	return source.val;
}

/* Bytes that may be written. One stays free, as in the kernel: a full ring is not an empty one. */
static uint64_t space(const struct pebs_ring *ring)
{
	/* The reader has copied everything before the tail: its slots may be written again. */
	uint64_t tail = __atomic_load_n(&ring->page->data_tail, __ATOMIC_ACQUIRE);
	uint64_t used = ring->head - tail;

	return used < ring->data_bytes ? ring->data_bytes - 1 - used : 0;
}

static void append(struct pebs_ring *ring, const void *record, uint64_t bytes)
{
	uint8_t *data = (uint8_t *)ring->page + RING_PAGE_BYTES;
	uint64_t start = ring->head & (ring->data_bytes - 1);
	uint64_t first = bytes < ring->data_bytes - start ? bytes : ring->data_bytes - start;

	memcpy(data + start, record, first);
	memcpy(data, (const uint8_t *)record + first, bytes - first);
	ring->head += bytes;
}

void pebs_ring_init(struct pebs_ring *ring, struct perf_ring_page *page, uint64_t data_bytes)
{
	memset(page, 0, RING_PAGE_BYTES);
	page->data_offset = RING_PAGE_BYTES;
	page->data_size = data_bytes;
	*ring = (struct pebs_ring){ .page = page, .data_bytes = data_bytes };
}

bool pebs_write(struct pebs_ring *ring, const struct pebs_sample *sample)
{
	struct lost_record lost = {
		.header = { PERF_RECORD_LOST, 0, sizeof(lost) },
		.lost = ring->lost,
	};
	struct sample_record record = {
		.header = { PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER | PERF_RECORD_MISC_EXACT_IP,
			    sizeof(record) },
		.ip = sample->ip,
		.pid = sample->address_space,
		.time = sample->time_ns,
		.addr = sample->address,
		.cpu = sample->cpu,
		.period = sample->period,
		.instructions = sample->instructions,
		.weight = sample->latency_ns,
		.data_src = data_source(sample),
		.phys_addr = sample->physical,
	};
	uint64_t lost_bytes = ring->lost ? sizeof(lost) : 0;

	if (lost_bytes + sizeof(record) > space(ring)) {
		ring->lost++;
		return false;
	}
	append(ring, &lost, lost_bytes);
	append(ring, &record, sizeof(record));
	ring->lost = 0;
	__atomic_store_n(&ring->page->data_head, ring->head, __ATOMIC_RELEASE);
	return true;
}
