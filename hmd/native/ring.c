/*
 * The reader of perf rings, of perf_event_open(2) and of the emulated machine.
 *
 * A ring is a header page (struct perf_event_mmap_page; only data_head and data_tail are used)
 * and a power of two of data bytes. The writer owns data_head, the reader data_tail
 * (perf_event_open(2), "MMAP layout"). The reader trusts nothing that the writer wrote: it checks
 * sizes against the head. On an invalid size it discards the contents of the ring (tail = head),
 * counts it as corrupt and continues at the next call.
 *
 * Costs a few nanoseconds per sample. Takes no lock, allocates nothing.
 */
#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* hmd.sample.access_batch.Kind */
#define HMD_KIND_LOAD 0
#define HMD_KIND_STORE 1

/* Columns of the caller, `capacity` rows each; rows are appended at `count`. */
struct hmd_ring_columns {
	uint64_t *address, *physical, *time_ns, *instructions;
	uint32_t *pid, *tid, *weight, *period;
	uint16_t *cpu;
	uint8_t *kind;
	size_t capacity, count;
};

struct hmd_ring_counts {
	uint64_t samples, lost, throttled, unthrottled;
	uint64_t skipped; /* records of types that the sampler does not use */
	uint64_t corrupt; /* records that could not be read, and rings discarded */
	uint64_t cached;  /* samples of stores that hit the first-level cache: not in the columns */
};

struct hmd_ring_source {
	void *header;
	const void *data;
	uint64_t data_bytes;  /* power of two, fixed at open: the header's value is not trusted */
	uint64_t sample_type; /* of fixed-size fields only, see hmd_ring_sample_bytes() */
	uint8_t kind;         /* of samples whose data source does not name it */
};

/* Fields of PERF_RECORD_SAMPLE in the order in which the kernel writes them. */
static const uint64_t ring_fields[] = {
	PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_IP,        PERF_SAMPLE_TID,
	PERF_SAMPLE_TIME,       PERF_SAMPLE_ADDR,      PERF_SAMPLE_ID,
	PERF_SAMPLE_STREAM_ID,  PERF_SAMPLE_CPU,       PERF_SAMPLE_PERIOD,
	PERF_SAMPLE_READ, /* one word: the events have no read_format */
	PERF_SAMPLE_WEIGHT,     PERF_SAMPLE_DATA_SRC,  PERF_SAMPLE_TRANSACTION,
	PERF_SAMPLE_PHYS_ADDR,
};
#define RING_FIELDS (sizeof(ring_fields) / sizeof(ring_fields[0]))

/* Bytes of a sample record of this type with its header; 0 if the size of a field varies. */
static size_t hmd_ring_sample_bytes(uint64_t sample_type)
{
	size_t bytes = sizeof(struct perf_event_header);

	for (size_t i = 0; i < RING_FIELDS; i++) {
		if (sample_type & ring_fields[i])
			bytes += sizeof(uint64_t);
		sample_type &= ~ring_fields[i];
	}
	return sample_type ? 0 : bytes;
}

/* Copies out of the ring, in two parts where the record wraps. */
static void ring_copy(const struct hmd_ring_source *source, uint64_t position, void *to, size_t bytes)
{
	uint64_t offset = position & (source->data_bytes - 1);
	uint64_t first = source->data_bytes - offset;

	if (first > bytes)
		first = bytes;
	memcpy(to, (const char *)source->data + offset, first);
	memcpy((char *)to + first, source->data, bytes - first);
}

static uint32_t ring_clamp(uint64_t value)
{
	return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static uint8_t ring_kind(uint64_t data_src, uint8_t otherwise)
{
	uint64_t op = data_src & 0x1f; /* union perf_mem_data_src: mem_op is the lowest five bits */

	if (op & PERF_MEM_OP_STORE)
		return HMD_KIND_STORE;
	return op & PERF_MEM_OP_LOAD ? HMD_KIND_LOAD : otherwise;
}

/*
 * Whether a sample is of a store that hit the first-level cache. Store events count all stores, and
 * most of them hit: they say nothing about memory.
 */
static int ring_cached_store(uint64_t data_src)
{
	const union perf_mem_data_src source = { .val = data_src };

	return (source.mem_op & PERF_MEM_OP_STORE) && (source.mem_lvl & PERF_MEM_LVL_L1) &&
	       (source.mem_lvl & PERF_MEM_LVL_HIT);
}

/* Which word of a record a field is, its header being word 0; 0 where the type lacks it. */
struct ring_places {
	uint8_t tid, time, address, cpu, period, read, weight, data_src, physical;
};

static uint8_t ring_place(uint64_t sample_type, uint64_t field)
{
	uint8_t place = 1;

	if (!(sample_type & field))
		return 0;
	for (size_t i = 0; ring_fields[i] != field; i++)
		place += !!(sample_type & ring_fields[i]);
	return place;
}

static struct ring_places ring_places(uint64_t sample_type)
{
	return (struct ring_places){
		.tid = ring_place(sample_type, PERF_SAMPLE_TID),
		.time = ring_place(sample_type, PERF_SAMPLE_TIME),
		.address = ring_place(sample_type, PERF_SAMPLE_ADDR),
		.cpu = ring_place(sample_type, PERF_SAMPLE_CPU),
		.period = ring_place(sample_type, PERF_SAMPLE_PERIOD),
		.read = ring_place(sample_type, PERF_SAMPLE_READ),
		.weight = ring_place(sample_type, PERF_SAMPLE_WEIGHT),
		.data_src = ring_place(sample_type, PERF_SAMPLE_DATA_SRC),
		.physical = ring_place(sample_type, PERF_SAMPLE_PHYS_ADDR),
	};
}

static void ring_append(const uint64_t *record, struct ring_places at, uint8_t kind,
			struct hmd_ring_columns *columns)
{
	size_t row = columns->count++;
	uint64_t tid = at.tid ? record[at.tid] : 0;

	columns->pid[row] = (uint32_t)tid;
	columns->tid[row] = (uint32_t)(tid >> 32);
	columns->time_ns[row] = at.time ? record[at.time] : 0;
	columns->address[row] = at.address ? record[at.address] : 0;
	columns->cpu[row] = (uint16_t)(at.cpu ? record[at.cpu] : 0);
	columns->period[row] = ring_clamp(at.period ? record[at.period] : 0);
	columns->instructions[row] = at.read ? record[at.read] : 0;
	columns->weight[row] = ring_clamp(at.weight ? record[at.weight] : 0);
	columns->kind[row] = ring_kind(at.data_src ? record[at.data_src] : 0, kind);
	columns->physical[row] = at.physical ? record[at.physical] : 0;
}

/* A sample: appended, or counted as of no use; 1 where the columns have no room for it. */
static int ring_take(const uint64_t *record, struct ring_places at, uint8_t kind,
		     struct hmd_ring_columns *columns, struct hmd_ring_counts *counts)
{
	if (at.data_src && ring_cached_store(record[at.data_src])) {
		counts->cached++;
		return 0;
	}
	if (columns->count >= columns->capacity) {
		counts->lost++;
		return 1;
	}
	ring_append(record, at, kind, columns);
	counts->samples++;
	return 0;
}

/* Counts a record that is not a sample. */
static void ring_note(const struct hmd_ring_source *source, uint64_t tail,
		      const struct perf_event_header *header, struct hmd_ring_counts *counts)
{
	uint64_t body[2];

	switch (header->type) {
	case PERF_RECORD_LOST: /* u64 id, u64 lost */
		if (header->size < sizeof(*header) + 2 * sizeof(uint64_t)) {
			counts->corrupt++;
			return;
		}
		ring_copy(source, tail + sizeof(*header), body, 2 * sizeof(uint64_t));
		counts->lost += body[1];
		return;
	case PERF_RECORD_LOST_SAMPLES: /* u64 lost */
		if (header->size < sizeof(*header) + sizeof(uint64_t)) {
			counts->corrupt++;
			return;
		}
		ring_copy(source, tail + sizeof(*header), body, sizeof(uint64_t));
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

/*
 * Moves the records of the ring into the columns. Samples that do not fit are lost, so that the
 * next call gets current ones; returns 1 if there were any, else 0. Reads at most data_bytes / 8
 * records per call.
 */
static int hmd_ring_drain(const struct hmd_ring_source *source, struct hmd_ring_columns *columns,
	       struct hmd_ring_counts *counts)
{
	struct perf_event_mmap_page *page = source->header;
	size_t sample_bytes = hmd_ring_sample_bytes(source->sample_type);
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = __atomic_load_n(&page->data_tail, __ATOMIC_RELAXED);
	struct ring_places places = ring_places(source->sample_type);
	uint64_t copy[1 + RING_FIELDS];
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
			ring_note(source, tail, &header, counts);
		} else if (header.size != sample_bytes) {
			counts->corrupt++;
		} else {
			if (sample_bytes > source->data_bytes - offset) {
				ring_copy(source, tail, copy, sample_bytes);
				record = copy;
			}
			over |= ring_take(record, places, source->kind, columns, counts);
		}
		tail += header.size;
	}
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return over;
}

/*
 * Copies whole records out of a ring without samples, oldest first, and frees their room. Returns
 * the bytes copied; a ring with an invalid record is discarded.
 */
static size_t hmd_ring_bytes(const struct hmd_ring_source *source, void *out, size_t capacity)
{
	struct perf_event_mmap_page *page = source->header;
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = __atomic_load_n(&page->data_tail, __ATOMIC_RELAXED);
	size_t copied = 0;

	if (head - tail > source->data_bytes || (head | tail) % sizeof(uint64_t))
		tail = head;
	while (tail != head) {
		struct perf_event_header header;

		ring_copy(source, tail, &header, sizeof(header));
		if (header.size < sizeof(header) || header.size % sizeof(uint64_t) ||
		    header.size > head - tail) {
			tail = head;
			break;
		}
		if (header.size > capacity - copied)
			break;
		ring_copy(source, tail, (char *)out + copied, header.size);
		/* The writer may change the record meanwhile: the size that was checked holds. */
		memcpy((char *)out + copied, &header, sizeof(header));
		copied += header.size;
		tail += header.size;
	}
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return copied;
}

/* Slots of a hash table of distinct values, at most half full. */
#define DISTINCT_SLOTS 32768
#define HMD_DISTINCT_MOST (DISTINCT_SLOTS / 2)

/*
 * Fills `values` with the distinct values of a column in order of first occurrence, and `which` with
 * the index of each row's value. Returns their number, at most HMD_DISTINCT_MOST; rows of further
 * values get -1.
 */
static size_t hmd_ring_distinct(const uint32_t *column, size_t rows, uint32_t *values, int32_t *which)
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
			if (!slots[slot] && count < HMD_DISTINCT_MOST) {
				values[count] = last;
				slots[slot] = (int32_t)++count;
			}
			place = slots[slot] - 1;
		}
		which[row] = place;
	}
	return count;
}

/*
 * Keeps the rows of a known process (0 or above) with an address above 0 and below `end`, in order,
 * in the columns and in `process`. Returns their number.
 */
static size_t hmd_ring_keep(struct hmd_ring_columns *c, int32_t *process, uint64_t end)
{
	size_t kept = 0;

	for (size_t row = 0; row < c->count; row++) {
		if (process[row] < 0 || !c->address[row] || c->address[row] >= end)
			continue;
		if (kept != row) {
			process[kept] = process[row];
			c->address[kept] = c->address[row];
			c->physical[kept] = c->physical[row];
			c->time_ns[kept] = c->time_ns[row];
			c->instructions[kept] = c->instructions[row];
			c->pid[kept] = c->pid[row];
			c->tid[kept] = c->tid[row];
			c->weight[kept] = c->weight[row];
			c->period[kept] = c->period[row];
			c->cpu[kept] = c->cpu[row];
			c->kind[kept] = c->kind[row];
		}
		kept++;
	}
	return c->count = kept;
}
