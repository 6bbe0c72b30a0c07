/* SPDX-License-Identifier: MIT */
#include "ring.h"

#include <linux/perf_event.h>
#include <string.h>

/* Newer than the oldest kernel headers that hmd is built with. */
#define SAMPLE_CGROUP (1ull << 21)
#define SAMPLE_DATA_PAGE_SIZE (1ull << 22)
#define SAMPLE_CODE_PAGE_SIZE (1ull << 23)
#define SAMPLE_WEIGHT_STRUCT (1ull << 24)
#define SAMPLE_AUX (1ull << 20)
#define BRANCH_HW_INDEX (1ull << 17)
#define BRANCH_COUNTERS (1ull << 19)
#define READ_LOST (1ull << 4)
#define LEVEL_CXL 9
#define FINISHED_ROUND 68 /* tools/perf/util/event.h: the records so far can be sorted */

/* Which word of a record a field is, its header being word 0; 0 where the type lacks it. */
struct field_positions {
	uint16_t code, tid, time, address, cpu, period, read, latency, latencies, data_src, physical;
	uint16_t unused;
};

#define FIELD(bit, name) { bit, offsetof(struct field_positions, name) / sizeof(uint16_t) }
/* Fields of PERF_RECORD_SAMPLE in the order in which the kernel writes them. */
static const struct {
	uint64_t bit;
	size_t position; /* which member of struct field_positions */
} sample_fields[] = {
	FIELD(PERF_SAMPLE_IDENTIFIER, unused),
	FIELD(PERF_SAMPLE_IP, code),
	FIELD(PERF_SAMPLE_TID, tid),
	FIELD(PERF_SAMPLE_TIME, time),
	FIELD(PERF_SAMPLE_ADDR, address),
	FIELD(PERF_SAMPLE_ID, unused),
	FIELD(PERF_SAMPLE_STREAM_ID, unused),
	FIELD(PERF_SAMPLE_CPU, cpu),
	FIELD(PERF_SAMPLE_PERIOD, period),
	FIELD(PERF_SAMPLE_READ, read),
	FIELD(PERF_SAMPLE_CALLCHAIN, unused),
	FIELD(PERF_SAMPLE_RAW, unused),
	FIELD(PERF_SAMPLE_BRANCH_STACK, unused),
	FIELD(PERF_SAMPLE_REGS_USER, unused),
	FIELD(PERF_SAMPLE_STACK_USER, unused),
	FIELD(PERF_SAMPLE_WEIGHT, latency),
	FIELD(SAMPLE_WEIGHT_STRUCT, latencies),
	FIELD(PERF_SAMPLE_DATA_SRC, data_src),
	FIELD(PERF_SAMPLE_TRANSACTION, unused),
	FIELD(PERF_SAMPLE_REGS_INTR, unused),
	FIELD(PERF_SAMPLE_PHYS_ADDR, physical),
	FIELD(SAMPLE_CGROUP, unused),
	FIELD(SAMPLE_DATA_PAGE_SIZE, unused),
	FIELD(SAMPLE_CODE_PAGE_SIZE, unused),
	FIELD(SAMPLE_AUX, unused),
};
#define SAMPLE_FIELDS (sizeof(sample_fields) / sizeof(sample_fields[0]))
#define VARIABLE_FIELDS                                                                        \
	(PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_RAW | PERF_SAMPLE_BRANCH_STACK |                  \
	 PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER | PERF_SAMPLE_REGS_INTR | SAMPLE_AUX)

/*
 * Words of a field that begins at word `at` of a record of `words`; more than the record has where
 * it does not fit.
 */
static size_t field_words(const struct hmd_sample_format *format, uint64_t field,
			  const uint64_t *record, size_t at, size_t words)
{
	uint64_t read = format->read_format, branches = format->branch_sample_type, first;
	int grouped = field == PERF_SAMPLE_READ && (read & PERF_FORMAT_GROUP);
	size_t times = !!(read & PERF_FORMAT_TOTAL_TIME_ENABLED) +
		       !!(read & PERF_FORMAT_TOTAL_TIME_RUNNING);
	size_t marks = !!(read & PERF_FORMAT_ID) + !!(read & READ_LOST);

	if (!grouped && !(field & VARIABLE_FIELDS))
		return field == PERF_SAMPLE_READ ? 1 + times + marks : 1;
	if (at >= words)
		return words;
	first = record[at];
	if (field == PERF_SAMPLE_RAW) /* its size in 32 bits, then as many bytes */
		return (sizeof(uint32_t) + (size_t)(uint32_t)first + 7) / 8;
	if (first > words * sizeof(uint64_t) && !(field & (PERF_SAMPLE_REGS_USER | PERF_SAMPLE_REGS_INTR)))
		return words;
	switch (field) {
	case PERF_SAMPLE_READ:
		return 1 + times + first * (1 + marks);
	case PERF_SAMPLE_BRANCH_STACK:
		return 1 + !!(branches & BRANCH_HW_INDEX) +
		       first * (3 + !!(branches & BRANCH_COUNTERS));
	case PERF_SAMPLE_REGS_USER: /* the ABI, then registers unless it is none */
		return 1 + (first ? format->user_registers : 0);
	case PERF_SAMPLE_REGS_INTR:
		return 1 + (first ? format->interrupt_registers : 0);
	case PERF_SAMPLE_STACK_USER: /* bytes, the stack, how much of it is valid */
		return first ? 2 + (first + 7) / 8 : 1;
	case SAMPLE_AUX:
		return 1 + (first + 7) / 8;
	default: /* PERF_SAMPLE_CALLCHAIN */
		return 1 + first;
	}
}

/* Finds the fields of a record of `words`; returns the words that they take, 0 if more. */
static size_t locate_fields(const struct hmd_sample_format *format, const uint64_t *record,
			    size_t words, struct field_positions *at)
{
	uint16_t *positions = (uint16_t *)at;
	size_t next = 1;

	memset(at, 0, sizeof(*at));
	for (size_t i = 0; i < SAMPLE_FIELDS; i++) {
		if (!(format->sample_type & sample_fields[i].bit))
			continue;
		positions[sample_fields[i].position] = (uint16_t)next;
		next += field_words(format, sample_fields[i].bit, record, next, words);
		if (next > words)
			return 0;
	}
	return next;
}

/* Where the fields of a ring's samples are; by value, so that the compiler keeps it in registers. */
static struct field_positions fixed_positions(uint64_t sample_type)
{
	const struct hmd_sample_format format = { .sample_type = sample_type };
	struct field_positions at;

	locate_fields(&format, NULL, 1 + SAMPLE_FIELDS, &at);
	return at;
}

size_t hmd_ring_sample_bytes(uint64_t sample_type)
{
	const struct hmd_sample_format format = { .sample_type = sample_type };
	struct field_positions at;
	uint64_t unknown = sample_type;

	for (size_t i = 0; i < SAMPLE_FIELDS; i++)
		unknown &= ~sample_fields[i].bit;
	if (unknown || (sample_type & VARIABLE_FIELDS))
		return 0;
	return locate_fields(&format, NULL, 1 + SAMPLE_FIELDS, &at) * sizeof(uint64_t);
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

/* What answered an access (enum hmd_level), by either of the kernel's two encodings. */
static uint8_t memory_level(uint64_t data_src)
{
	const union perf_mem_data_src source = { .val = data_src };

	switch (source.mem_lvl_num) {
	case PERF_MEM_LVLNUM_L1:
		return source.mem_lvl & PERF_MEM_LVL_MISS ? HMD_LEVEL_UNKNOWN : HMD_LEVEL_L1;
	case PERF_MEM_LVLNUM_L2:
		return HMD_LEVEL_L2;
	case PERF_MEM_LVLNUM_L3:
	case PERF_MEM_LVLNUM_L4:
	case PERF_MEM_LVLNUM_ANY_CACHE:
		return HMD_LEVEL_L3;
	case PERF_MEM_LVLNUM_LFB:
		return HMD_LEVEL_FILL_BUFFER;
	case PERF_MEM_LVLNUM_RAM:
		return source.mem_remote ? HMD_LEVEL_REMOTE_MEMORY : HMD_LEVEL_MEMORY;
	case PERF_MEM_LVLNUM_PMEM:
		return HMD_LEVEL_PERSISTENT_MEMORY;
	case LEVEL_CXL:
		return HMD_LEVEL_CXL_MEMORY;
	}
	if (!(source.mem_lvl & PERF_MEM_LVL_HIT))
		return HMD_LEVEL_UNKNOWN;
	if (source.mem_lvl & PERF_MEM_LVL_L1)
		return HMD_LEVEL_L1;
	if (source.mem_lvl & PERF_MEM_LVL_LFB)
		return HMD_LEVEL_FILL_BUFFER;
	if (source.mem_lvl & PERF_MEM_LVL_L2)
		return HMD_LEVEL_L2;
	if (source.mem_lvl & (PERF_MEM_LVL_L3 | PERF_MEM_LVL_REM_CCE1 | PERF_MEM_LVL_REM_CCE2))
		return HMD_LEVEL_L3;
	if (source.mem_lvl & PERF_MEM_LVL_LOC_RAM)
		return HMD_LEVEL_MEMORY;
	return source.mem_lvl & (PERF_MEM_LVL_REM_RAM1 | PERF_MEM_LVL_REM_RAM2) ?
		       HMD_LEVEL_REMOTE_MEMORY :
		       HMD_LEVEL_UNKNOWN;
}

static inline __attribute__((always_inline)) void
append_row(const uint64_t *record, struct field_positions at, uint8_t kind,
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
	/* Of several latencies, the first 32 bits are the one that a single weight would be. */
	columns->latency[row] = at.latencies ? (uint32_t)record[at.latencies] :
					       clamp_to_32(at.latency ? record[at.latency] : 0);
	columns->kind[row] = sample_kind(at.data_src ? record[at.data_src] : 0, kind);
	if (columns->level)
		columns->level[row] = memory_level(at.data_src ? record[at.data_src] : 0);
	if (columns->code_address)
		columns->code_address[row] = at.code ? record[at.code] : 0;
	columns->physical[row] = at.physical ? record[at.physical] : 0;
}

/* The kernel's half of the address space; what it accesses for a program lies in the other. */
static int is_kernel_address(uint64_t address)
{
	return address >> 63;
}

/*
 * A sample: appended, or counted as of no use, unless `all` of the host are wanted; 1 where the
 * columns have no room for it.
 */
static inline __attribute__((always_inline)) int
take_sample(const uint64_t *record, uint16_t misc, struct field_positions at, uint8_t kind,
	    int all, struct hmd_ring_columns *columns, struct hmd_ring_counts *counts)
{
	if (is_guest(misc)) {
		counts->guest++;
		return 0;
	}
	if (!all && at.address && is_kernel_address(record[at.address])) {
		if (sample_kind(at.data_src ? record[at.data_src] : 0, kind) == HMD_KIND_STORE)
			counts->kernel_stores++;
		else
			counts->kernel_loads++;
		return 0;
	}
	if (!all && at.data_src && is_cached(record[at.data_src])) {
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

/* Counts a record that is not a sample; `body` are its first words, at least two. */
static void count_record(const struct perf_event_header *header, const uint64_t *body,
			 struct hmd_ring_counts *counts)
{
	/* LOST: u64 id, u64 lost. LOST_SAMPLES: u64 lost. */
	size_t lost = header->type == PERF_RECORD_LOST;

	switch (header->type) {
	case PERF_RECORD_LOST:
	case PERF_RECORD_LOST_SAMPLES:
		if (header->size < sizeof(*header) + (1 + lost) * sizeof(uint64_t))
			counts->corrupt++;
		else
			counts->lost += body[lost];
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
	const struct field_positions positions = fixed_positions(source->sample_type);
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
			copy_out(source, tail + sizeof(header), copy, 2 * sizeof(uint64_t));
			count_record(&header, copy, counts);
		} else if (header.size != sample_bytes) {
			counts->corrupt++;
		} else {
			if (sample_bytes > source->data_bytes - offset) {
				copy_out(source, tail, copy, sample_bytes);
				record = copy;
			}
			over |= take_sample(record, header.misc, positions, source->kind, 0,
					    columns, counts);
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

void hmd_records_split(const void *data, size_t bytes, size_t id_word,
		       struct hmd_record_list *list)
{
	struct perf_event_header header;

	list->count = list->bytes = 0;
	while (list->count < list->capacity && bytes - list->bytes >= sizeof(header)) {
		const char *record = (const char *)data + list->bytes;
		size_t id_end = (id_word + 1) * sizeof(uint64_t), row = list->count;

		memcpy(&header, record, sizeof(header));
		if (header.size < sizeof(header) || header.size > bytes - list->bytes)
			return;
		list->offset[row] = (uint32_t)list->bytes;
		list->type[row] = header.type;
		list->id[row] = 0;
		if (id_word && id_end <= header.size)
			memcpy(&list->id[row], record + id_end - sizeof(uint64_t), sizeof(uint64_t));
		list->count++;
		list->bytes += header.size;
		if (header.type >= HMD_FIRST_TOOL_RECORD && header.type != FINISHED_ROUND)
			return;
	}
}

void hmd_records_read(const struct hmd_sample_format *format, uint8_t kind, const void *data,
		      const uint32_t *offset, size_t count, struct hmd_ring_columns *columns,
		      struct hmd_ring_counts *counts)
{
	uint64_t record[(UINT16_MAX + 1) / sizeof(uint64_t)]; /* aligned, which a file need not be */
	struct perf_event_header header;
	struct field_positions at;

	for (size_t i = 0; i < count; i++) {
		size_t words;

		memcpy(&header, (const char *)data + offset[i], sizeof(header));
		memcpy(record, (const char *)data + offset[i], header.size);
		words = header.size / sizeof(uint64_t);
		if (header.type != PERF_RECORD_SAMPLE) {
			count_record(&header, record + 1, counts);
		} else if (header.size % sizeof(uint64_t) ||
			   locate_fields(format, record, words, &at) != words) {
			counts->corrupt++;
		} else {
			at.read = 0; /* not the count of instructions that hmd's own events have */
			take_sample(record, header.misc, at, kind, 1, columns, counts);
		}
	}
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
	if (columns->level)
		columns->level[to] = columns->level[from];
	if (columns->code_address)
		columns->code_address[to] = columns->code_address[from];
}

size_t hmd_ring_keep(struct hmd_ring_columns *columns, int32_t *process, uint64_t end)
{
	size_t kept = 0;

	for (size_t row = 0; row < columns->count; row++) {
		uint64_t address = columns->address[row];

		if (process[row] < 0)
			continue;
		if (!address || address >= end) {
			columns->without_address += !address;
			continue;
		}
		if (kept != row) {
			process[kept] = process[row];
			move_row(columns, row, kept);
		}
		kept++;
	}
	return columns->count = kept;
}
