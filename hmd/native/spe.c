/* SPDX-License-Identifier: MIT */
#include "spe.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int hmd_spe_open(uint32_t type, uint64_t config, uint64_t config1, uint64_t config2,
		 uint64_t interval, uint32_t watermark, int exclude_kernel, int cpu)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = type,
		.config = config,
		.config1 = config1,
		.config2 = config2,
		.sample_period = interval,
		.aux_watermark = watermark,
		.disabled = 1,
		.exclude_kernel = !!exclude_kernel,
		.exclude_hv = !!exclude_kernel,
	};
	long fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : (int)fd;
}

int hmd_spe_map(int fd, void *header, uint64_t ring_bytes, uint64_t bytes, void **area)
{
	struct perf_event_mmap_page *page = header;
	void *base;

	page->aux_offset = ring_bytes;
	page->aux_size = bytes;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)ring_bytes);
	if (base == MAP_FAILED)
		return -errno;
	*area = base;
	return 0;
}

int hmd_spe_unmap(void *area, uint64_t bytes)
{
	return munmap(area, bytes) ? -errno : 0;
}

int hmd_spe_read_clock(struct hmd_spe_clock *clock)
{
#ifdef __aarch64__
	struct timespec now;

	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(clock->frequency_hz));
	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(clock->counter) : : "memory");
	clock_gettime(CLOCK_MONOTONIC, &now);
	clock->monotonic_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	return 0;
#else
	*clock = (struct hmd_spe_clock){ 0 };
	return -ENOSYS;
#endif
}

enum packet_type {
	PACKET_BAD,       /* no packet of the specification */
	PACKET_SHORT,     /* reaches beyond the data */
	PACKET_PAD,       /* padding of one byte, or up to an alignment */
	PACKET_END,       /* of a record without a timestamp */
	PACKET_TIMESTAMP, /* which ends a record too */
	PACKET_ADDRESS,
	PACKET_COUNTER,
	PACKET_CONTEXT,
	PACKET_OPERATION,
	PACKET_EVENTS,
	PACKET_SOURCE, /* its meaning is that of an implementation */
};

struct packet {
	enum packet_type type;
	uint32_t index; /* of addresses, counters and contexts; the class of an operation */
	size_t bytes;
	uint64_t value;
};

/* Indices of addresses. Bits 63 to 56 of a data address are its tag, of an instruction's, its level. */
#define ADDRESS_INSTRUCTION 0
#define ADDRESS_DATA 2
#define ADDRESS_PHYSICAL 3
#define COUNTER_TOTAL 0
#define CLASS_MEMORY 1
#define OPERATION_STORE 0x1
#define EVENT_L1_ACCESS (1u << 2)
#define EVENT_L1_REFILL (1u << 3)
#define EVENT_LAST_ACCESS (1u << 8)
#define EVENT_LAST_MISS (1u << 9)

/* Sign extension of a virtual address, by bit 55, which selects the kernel's half. */
#define KERNEL_HALF (UINT64_C(1) << 55)
#define ADDRESS_BITS ((UINT64_C(1) << 56) - 1)

/* After what is no packet, decoding goes on at the next multiple: records are aligned to it. */
#define RECORD_ALIGNMENT 64

static enum packet_type short_header_type(uint8_t header)
{
	if (header == 0x71)
		return PACKET_TIMESTAMP;
	if ((header & 0xcf) == 0x42)
		return PACKET_EVENTS;
	if ((header & 0xcf) == 0x43)
		return PACKET_SOURCE;
	if ((header & 0xfc) == 0x64)
		return PACKET_CONTEXT;
	if ((header & 0xfc) == 0x48)
		return PACKET_OPERATION;
	return PACKET_BAD;
}

/* Addresses and counters, whose header may be extended by a byte before it. */
static enum packet_type indexed_header_type(uint8_t header)
{
	/* Bits 5 and 4 of a header are the size of its payload: of addresses 8 bytes, of counters 2. */
	if ((header & 0xf8) == 0xb0)
		return PACKET_ADDRESS;
	return (header & 0xf8) == 0x98 ? PACKET_COUNTER : PACKET_BAD;
}

/* Reads the packet at `offset` of `bytes` of data; its size is at least 1. */
static struct packet read_packet(const uint8_t *data, size_t offset, size_t bytes)
{
	struct packet packet = { .type = PACKET_BAD, .bytes = 1 };
	uint8_t header = data[offset];
	size_t left = bytes - offset, header_bytes = 1, payload;

	if (header <= 0x01) {
		packet.type = header ? PACKET_END : PACKET_PAD;
		return packet;
	}
	packet.type = short_header_type(header);
	packet.index = header & 0x3;
	if (packet.type == PACKET_BAD) {
		uint32_t high = 0;

		if ((header & 0xfc) == 0x20) {
			if (left < 2) {
				packet.type = PACKET_SHORT;
				return packet;
			}
			if (!data[offset + 1]) {
				size_t alignment = (size_t)2 << (header & 0xf);

				packet.type = PACKET_PAD;
				packet.bytes = alignment - (offset & (alignment - 1));
				/* An alignment that lies within this header says nothing. */
				if (packet.bytes < 2)
					packet.bytes += alignment;
				if (packet.bytes > left)
					packet.bytes = left;
				return packet;
			}
			high = (uint32_t)(header & 0x3) << 3;
			header = data[offset + 1];
			header_bytes = 2;
		}
		packet.type = indexed_header_type(header);
		packet.index = high | (header & 0x7);
		if (packet.type == PACKET_BAD)
			return packet;
	}
	payload = (size_t)1 << (header >> 4 & 0x3);
	packet.bytes = header_bytes + payload;
	if (packet.bytes > left) {
		packet.type = PACKET_SHORT;
		return packet;
	}
	for (size_t i = payload; i-- > 0;)
		packet.value = packet.value << 8 | data[offset + header_bytes + i];
	return packet;
}

/* What the packets of a record have said so far. */
struct record {
	uint64_t address, physical, timestamp, code;
	uint32_t events, latency, thread, operation;
	uint8_t begun, has_address, is_access;
};

static uint64_t extended(uint64_t address)
{
	return address & KERNEL_HALF ? address | ~ADDRESS_BITS : address & ADDRESS_BITS;
}

static void add_packet(const struct packet *packet, struct record *record)
{
	switch (packet->type) {
	case PACKET_ADDRESS:
		if (packet->index == ADDRESS_DATA) {
			record->address = extended(packet->value);
			record->has_address = 1;
		} else if (packet->index == ADDRESS_INSTRUCTION) {
			record->code = extended(packet->value);
		} else if (packet->index == ADDRESS_PHYSICAL) {
			record->physical = packet->value & ADDRESS_BITS;
		}
		break;
	case PACKET_COUNTER:
		if (packet->index == COUNTER_TOTAL)
			record->latency = (uint32_t)packet->value;
		break;
	case PACKET_CONTEXT:
		record->thread = (uint32_t)packet->value;
		break;
	case PACKET_OPERATION:
		record->is_access = packet->index == CLASS_MEMORY;
		record->operation = (uint32_t)packet->value;
		break;
	case PACKET_EVENTS:
		record->events = (uint32_t)packet->value;
		break;
	case PACKET_TIMESTAMP:
		record->timestamp = packet->value;
		break;
	default:
		break;
	}
	record->begun = 1;
}

/* Whether a cache near the CPU answered, so that the access says nothing about memory. */
static int was_cached(const struct record *record, const struct hmd_spe_source *source)
{
	int refilled = !!(record->events & EVENT_L1_REFILL);

	if (record->operation & OPERATION_STORE)
		return (record->events & EVENT_L1_ACCESS) && !refilled;
	if (source->misses)
		return !refilled || ((record->events & EVENT_LAST_ACCESS) &&
				     !(record->events & EVENT_LAST_MISS));
	return record->latency < source->min_latency;
}

static uint64_t monotonic_time(const struct hmd_spe_clock *clock, uint64_t timestamp)
{
	double ns;

	if (!clock->frequency_hz || !timestamp)
		return 0;
	ns = (double)(int64_t)(timestamp - clock->counter) * (1e9 / (double)clock->frequency_hz);
	/* What lies before the clock began, or years away, is garbage. */
	if (ns < -(double)clock->monotonic_ns || ns > 1e18)
		return 0;
	return clock->monotonic_ns + (uint64_t)(int64_t)ns;
}

/* Appends the access of a record; 1 where the columns have no room for it. */
static int take_record(const struct record *record, const struct hmd_spe_source *source,
		       struct hmd_ring_columns *columns, struct hmd_ring_counts *counts)
{
	uint8_t kind = record->operation & OPERATION_STORE ? HMD_KIND_STORE : HMD_KIND_LOAD;
	double latency_ns = kind == HMD_KIND_LOAD ? record->latency * source->ns_per_cycle : 0;
	size_t row;

	if (!record->is_access || !record->has_address) {
		counts->skipped++;
		return 0;
	}
	if (!source->kernel_too && record->address & KERNEL_HALF) {
		if (kind == HMD_KIND_STORE)
			counts->kernel_stores++;
		else
			counts->kernel_loads++;
		return 0;
	}
	if (was_cached(record, source)) {
		if (kind == HMD_KIND_STORE)
			counts->cached_stores++;
		else
			counts->cached_loads++;
		return 0;
	}
	if (columns->count >= columns->capacity) {
		counts->lost++;
		return 1;
	}
	row = columns->count++;
	columns->address[row] = record->address;
	columns->physical[row] = record->physical;
	columns->time_ns[row] = monotonic_time(&source->clock, record->timestamp);
	columns->instructions[row] = 0;
	columns->pid[row] = 0;
	columns->thread[row] = record->thread;
	columns->latency[row] = latency_ns < UINT32_MAX ? (uint32_t)latency_ns : UINT32_MAX;
	columns->period[row] = source->interval;
	columns->cpu[row] = source->cpu;
	columns->kind[row] = kind;
	if (columns->level)
		columns->level[row] = 0; /* which cache answered is not decoded */
	if (columns->code_address)
		columns->code_address[row] = record->code;
	counts->samples++;
	return 0;
}

/*
 * Decodes from `start` to `end` of the area. A record without its end is dropped and counted as
 * corrupt: the kernel pads the end of the area, so that no record wraps.
 */
static int decode(const struct hmd_spe_source *source, size_t start, size_t end,
		  struct hmd_ring_columns *columns, struct hmd_ring_counts *counts)
{
	struct record record = { 0 };
	int over = 0;

	while (start < end) {
		struct packet packet = read_packet(source->area, start, end);

		if (packet.type == PACKET_BAD || packet.type == PACKET_SHORT) {
			counts->corrupt++;
			record = (struct record){ 0 };
			start = (start / RECORD_ALIGNMENT + 1) * RECORD_ALIGNMENT;
			continue;
		}
		start += packet.bytes;
		if (packet.type == PACKET_PAD)
			continue;
		/* A record begins with its instruction: the one before was cut off. */
		if (packet.type == PACKET_ADDRESS && packet.index == ADDRESS_INSTRUCTION &&
		    record.begun) {
			counts->corrupt++;
			record = (struct record){ 0 };
		}
		add_packet(&packet, &record);
		if (packet.type == PACKET_END || packet.type == PACKET_TIMESTAMP) {
			over |= take_record(&record, source, columns, counts);
			record = (struct record){ 0 };
		}
	}
	counts->corrupt += record.begun;
	return over;
}

int hmd_spe_drain(const struct hmd_spe_source *source, struct hmd_ring_columns *columns,
		  struct hmd_ring_counts *counts)
{
	struct perf_event_mmap_page *page = source->header;
	uint64_t head = __atomic_load_n(&page->aux_head, __ATOMIC_ACQUIRE);
	uint64_t tail = __atomic_load_n(&page->aux_tail, __ATOMIC_RELAXED);
	uint64_t offset = tail & (source->area_bytes - 1), bytes = head - tail, first;
	int over = 0;

	if (bytes > source->area_bytes) {
		counts->corrupt++;
		bytes = 0;
	}
	first = source->area_bytes - offset < bytes ? source->area_bytes - offset : bytes;
	over |= decode(source, offset, offset + first, columns, counts);
	over |= decode(source, 0, bytes - first, columns, counts);
	__atomic_store_n(&page->aux_tail, head, __ATOMIC_RELEASE);
	return over;
}

/* Bytes that a ring's records are copied out in at a time. */
#define COPIED_BYTES 4096

void hmd_spe_read_notices(const struct hmd_ring_source *ring, struct hmd_spe_notices *notices)
{
	uint64_t words[COPIED_BYTES / sizeof(uint64_t)];
	size_t bytes;

	while ((bytes = hmd_ring_bytes(ring, words, sizeof(words)))) {
		for (size_t at = 0; at < bytes;) {
			const uint64_t *body = words + at / sizeof(uint64_t) + 1;
			struct perf_event_header header;

			memcpy(&header, (const char *)words + at, sizeof(header));
			at += header.size;
			if (header.type == PERF_RECORD_AUX &&
			    header.size >= sizeof(header) + 3 * sizeof(uint64_t)) {
				/* u64 offset, u64 size, u64 flags */
				notices->truncated += !!(body[2] & PERF_AUX_FLAG_TRUNCATED);
				notices->gaps += !!(body[2] & (PERF_AUX_FLAG_PARTIAL |
							       PERF_AUX_FLAG_COLLISION));
			} else if (header.type == PERF_RECORD_LOST &&
				   header.size >= sizeof(header) + 2 * sizeof(uint64_t)) {
				notices->lost += body[1];
			}
		}
	}
}

size_t hmd_spe_read_switches(const struct hmd_ring_source *ring, struct hmd_spe_switch *found,
			     size_t capacity)
{
	uint64_t words[COPIED_BYTES / sizeof(uint64_t)];
	/* u32 pid and thread of the other, then those of sample_id, and its time. */
	const size_t record_bytes = sizeof(struct perf_event_header) + 3 * sizeof(uint64_t);
	size_t bytes, count = 0;

	/* Records are of 24 bytes at least: what is copied always fits. */
	while (capacity - count >= COPIED_BYTES / 24 &&
	       (bytes = hmd_ring_bytes(ring, words, sizeof(words)))) {
		for (size_t at = 0; at < bytes;) {
			const uint64_t *body = words + at / sizeof(uint64_t) + 1;
			struct perf_event_header header;

			memcpy(&header, (const char *)words + at, sizeof(header));
			at += header.size;
			if (header.type != PERF_RECORD_SWITCH_CPU_WIDE ||
			    header.misc & PERF_RECORD_MISC_SWITCH_OUT ||
			    header.size != record_bytes)
				continue;
			found[count++] = (struct hmd_spe_switch){
				.time_ns = body[2],
				.pid = (uint32_t)body[1],
				.thread = (uint32_t)(body[1] >> 32),
			};
		}
	}
	return count;
}
