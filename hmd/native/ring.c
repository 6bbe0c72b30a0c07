/* SPDX-License-Identifier: MIT */
#include "ring.h"

#include <linux/perf_event.h>
#include <string.h>

/* Fields of PERF_RECORD_SAMPLE in the order in which the kernel writes them. */
static const uint64_t sample_fields[] = {
	PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_IP,       PERF_SAMPLE_TID,
	PERF_SAMPLE_TIME,       PERF_SAMPLE_ADDR,     PERF_SAMPLE_ID,
	PERF_SAMPLE_STREAM_ID,  PERF_SAMPLE_CPU,      PERF_SAMPLE_PERIOD,
	PERF_SAMPLE_READ, /* one word: the events have no read_format */
	PERF_SAMPLE_WEIGHT,     PERF_SAMPLE_DATA_SRC, PERF_SAMPLE_TRANSACTION,
	PERF_SAMPLE_PHYS_ADDR,
};
#define SAMPLE_FIELDS (sizeof(sample_fields) / sizeof(sample_fields[0]))

size_t hmd_ring_sample_bytes(uint64_t sample_type)
{
	size_t bytes = sizeof(struct perf_event_header);

	for (size_t i = 0; i < SAMPLE_FIELDS; i++) {
		if (sample_type & sample_fields[i])
			bytes += sizeof(uint64_t);
		sample_type &= ~sample_fields[i];
	}
	return sample_type ? 0 : bytes;
}

/* Copies out of the ring, in two parts where the record wraps. */
static void copy_out(const struct hmd_ring_source *source, uint64_t position, void *to,
		     size_t bytes)
{
	uint64_t offset = position & (source->data_bytes - 1);
	uint64_t first = source->data_bytes - offset;

	if (first > bytes)
		first = bytes;
	memcpy(to, (const char *)source->data + offset, first);
	memcpy((char *)to + first, source->data, bytes - first);
}

static uint32_t clamp_to_32(uint64_t value)
{
	return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static uint8_t sample_kind(uint64_t data_src, uint8_t otherwise)
{
	uint64_t op = data_src & 0x1f; /* union perf_mem_data_src: mem_op is the lowest five bits */

	if (op & PERF_MEM_OP_STORE)
		return HMD_KIND_STORE;
	return op & PERF_MEM_OP_LOAD ? HMD_KIND_LOAD : otherwise;
}

/*
 * Whether a sample is of an access that hit the first-level cache. Store events count all stores,
 * IBS tags any op, and most of them hit: they say nothing about memory.
 */
static int is_cached(uint64_t data_src)
{
	const union perf_mem_data_src source = { .val = data_src };

	return (source.mem_lvl & PERF_MEM_LVL_L1) && (source.mem_lvl & PERF_MEM_LVL_HIT);
}

/* Whether a sample was taken while a virtual machine's guest ran: its address is the guest's. */
static int is_guest(uint16_t misc)
{
	uint16_t mode = misc & PERF_RECORD_MISC_CPUMODE_MASK;

	return mode == PERF_RECORD_MISC_GUEST_KERNEL || mode == PERF_RECORD_MISC_GUEST_USER;
}

/* Which word of a record a field is, its header being word 0; 0 where the type lacks it. */
struct field_positions {
	uint8_t tid, time, address, cpu, period, read, latency, data_src, physical;
};

static uint8_t field_position(uint64_t sample_type, uint64_t field)
{
	uint8_t position = 1;

	if (!(sample_type & field))
		return 0;
	for (size_t i = 0; sample_fields[i] != field; i++)
		position += !!(sample_type & sample_fields[i]);
	return position;
}

static struct field_positions field_positions(uint64_t sample_type)
{
	return (struct field_positions){
		.tid = field_position(sample_type, PERF_SAMPLE_TID),
		.time = field_position(sample_type, PERF_SAMPLE_TIME),
		.address = field_position(sample_type, PERF_SAMPLE_ADDR),
		.cpu = field_position(sample_type, PERF_SAMPLE_CPU),
		.period = field_position(sample_type, PERF_SAMPLE_PERIOD),
		.read = field_position(sample_type, PERF_SAMPLE_READ),
		.latency = field_position(sample_type, PERF_SAMPLE_WEIGHT),
		.data_src = field_position(sample_type, PERF_SAMPLE_DATA_SRC),
		.physical = field_position(sample_type, PERF_SAMPLE_PHYS_ADDR),
	};
}

static void append_row(const uint64_t *record, struct field_positions at, uint8_t kind,
		       struct hmd_ring_columns *columns)
{
	size_t row = columns->count++;
	uint64_t tid = at.tid ? record[at.tid] : 0;

	columns->pid[row] = (uint32_t)tid;
	columns->thread[row] = (uint32_t)(tid >> 32);
	columns->time_ns[row] = at.time ? record[at.time] : 0;
	columns->address[row] = at.address ? record[at.address] : 0;
	columns->cpu[row] = (uint16_t)(at.cpu ? record[at.cpu] : 0);
	columns->period[row] = clamp_to_32(at.period ? record[at.period] : 0);
	columns->instructions[row] = at.read ? record[at.read] : 0;
	columns->latency[row] = clamp_to_32(at.latency ? record[at.latency] : 0);
	columns->kind[row] = sample_kind(at.data_src ? record[at.data_src] : 0, kind);
	columns->physical[row] = at.physical ? record[at.physical] : 0;
}

/* A sample: appended, or counted as of no use; 1 where the columns have no room for it. */
static int take_sample(const uint64_t *record, uint16_t misc, struct field_positions at,
		       uint8_t kind, struct hmd_ring_columns *columns,
		       struct hmd_ring_counts *counts)
{
	if (is_guest(misc)) {
		counts->guest++;
		return 0;
	}
	if (at.data_src && is_cached(record[at.data_src])) {
		if (sample_kind(record[at.data_src], kind) == HMD_KIND_STORE)
			counts->cached_stores++;
		else
			counts->cached_loads++;
		return 0;
	}
	if (columns->count >= columns->capacity) {
		counts->lost++;
		return 1;
	}
	append_row(record, at, kind, columns);
	counts->samples++;
	return 0;
}

/* Counts a record that is not a sample. */
static void count_record(const struct hmd_ring_source *source, uint64_t tail,
			 const struct perf_event_header *header, struct hmd_ring_counts *counts)
{
	uint64_t body[2];

	switch (header->type) {
	case PERF_RECORD_LOST: /* u64 id, u64 lost */
		if (header->size < sizeof(*header) + 2 * sizeof(uint64_t)) {
			counts->corrupt++;
			return;
		}
		copy_out(source, tail + sizeof(*header), body, 2 * sizeof(uint64_t));
		counts->lost += body[1];
		return;
	case PERF_RECORD_LOST_SAMPLES: /* u64 lost */
		if (header->size < sizeof(*header) + sizeof(uint64_t)) {
			counts->corrupt++;
			return;
		}
		copy_out(source, tail + sizeof(*header), body, sizeof(uint64_t));
		counts->lost += body[0];
		return;
	case PERF_RECORD_THROTTLE:
		counts->throttled++;
		return;
	case PERF_RECORD_UNTHROTTLE:
		counts->unthrottled++;
		return;
	default:
		counts->skipped++;
	}
}

int hmd_ring_drain(const struct hmd_ring_source *source, struct hmd_ring_columns *columns,
		   struct hmd_ring_counts *counts)
{
	struct perf_event_mmap_page *page = source->header;
	size_t sample_bytes = hmd_ring_sample_bytes(source->sample_type);
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = __atomic_load_n(&page->data_tail, __ATOMIC_RELAXED);
	struct field_positions positions = field_positions(source->sample_type);
	uint64_t copy[1 + SAMPLE_FIELDS];
	int over = 0;

	if (head - tail > source->data_bytes || (head | tail) % sizeof(uint64_t)) {
		counts->corrupt++;
		tail = head;
	}
	while (tail != head) {
		uint64_t offset = tail & (source->data_bytes - 1);
		const uint64_t *record = (const uint64_t *)((const char *)source->data + offset);
		/* 8 aligned bytes, never split by the wrap; loaded once, as the writer may lie. */
		uint64_t first = __atomic_load_n(record, __ATOMIC_RELAXED);
		struct perf_event_header header;

		memcpy(&header, &first, sizeof(header));
		if (header.size < sizeof(header) || header.size % sizeof(uint64_t) ||
		    header.size > head - tail) {
			counts->corrupt++;
			tail = head;
			break;
		}
		if (header.type != PERF_RECORD_SAMPLE) {
			count_record(source, tail, &header, counts);
		} else if (header.size != sample_bytes) {
			counts->corrupt++;
		} else {
			if (sample_bytes > source->data_bytes - offset) {
				copy_out(source, tail, copy, sample_bytes);
				record = copy;
			}
			over |= take_sample(record, header.misc, positions, source->kind, columns,
					    counts);
		}
		tail += header.size;
	}
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return over;
}

size_t hmd_ring_bytes(const struct hmd_ring_source *source, void *out, size_t capacity)
{
	struct perf_event_mmap_page *page = source->header;
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = __atomic_load_n(&page->data_tail, __ATOMIC_RELAXED);
	size_t copied = 0;

	if (head - tail > source->data_bytes || (head | tail) % sizeof(uint64_t))
		tail = head;
	while (tail != head) {
		struct perf_event_header header;

		copy_out(source, tail, &header, sizeof(header));
		if (header.size < sizeof(header) || header.size % sizeof(uint64_t) ||
		    header.size > head - tail) {
			tail = head;
			break;
		}
		if (header.size > capacity - copied)
			break;
		copy_out(source, tail, (char *)out + copied, header.size);
		/* The writer may change the record meanwhile: the size that was checked holds. */
		memcpy((char *)out + copied, &header, sizeof(header));
		copied += header.size;
		tail += header.size;
	}
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return copied;
}

/* Slots of a hash table of distinct values, at most half full. */
#define DISTINCT_SLOTS (2 * HMD_MAX_DISTINCT)

size_t hmd_ring_distinct(const uint32_t *column, size_t rows, uint32_t *values, int32_t *which)
{
	int32_t slots[DISTINCT_SLOTS] = { 0 }; /* 1 + the index in `values`, 0: free */
	size_t count = 0;
	uint32_t last = 0;
	int32_t place = -1;

	for (size_t row = 0; row < rows; row++) {
		if (row == 0 || column[row] != last) {
			/* Fibonacci hashing (Knuth, TAOCP 3, 6.4): the upper 15 bits of the product. */
			uint32_t slot = (column[row] * 0x9E3779B9u) >> 17;

			last = column[row];
			while (slots[slot] && values[slots[slot] - 1] != last)
				slot = (slot + 1) % DISTINCT_SLOTS;
			if (!slots[slot] && count < HMD_MAX_DISTINCT) {
				values[count] = last;
				slots[slot] = (int32_t)++count;
			}
			place = slots[slot] - 1;
		}
		which[row] = place;
	}
	return count;
}

static void move_row(struct hmd_ring_columns *columns, size_t from, size_t to)
{
	columns->address[to] = columns->address[from];
	columns->physical[to] = columns->physical[from];
	columns->time_ns[to] = columns->time_ns[from];
	columns->instructions[to] = columns->instructions[from];
	columns->pid[to] = columns->pid[from];
	columns->thread[to] = columns->thread[from];
	columns->latency[to] = columns->latency[from];
	columns->period[to] = columns->period[from];
	columns->cpu[to] = columns->cpu[from];
	columns->kind[to] = columns->kind[from];
}

size_t hmd_ring_keep(struct hmd_ring_columns *columns, int32_t *process, uint64_t end)
{
	size_t kept = 0;

	for (size_t row = 0; row < columns->count; row++) {
		uint64_t address = columns->address[row];

		if (process[row] < 0 || !address || address >= end)
			continue;
		if (kept != row) {
			process[kept] = process[row];
			move_row(columns, row, kept);
		}
		kept++;
	}
	return columns->count = kept;
}
