/* SPDX-License-Identifier: MIT */
/*
 * The reader of perf rings, of perf_event_open(2) and of the emulated machine, for
 * hmd.sample.perf_ring.
 *
 * A ring is a header page (struct perf_event_mmap_page; only data_head and data_tail are used)
 * and a power of two of data bytes. The writer owns data_head, the reader data_tail
 * (perf_event_open(2), "MMAP layout"). The reader trusts nothing that the writer wrote: it checks
 * sizes against the head. On an invalid size it discards the contents of the ring (tail = head),
 * counts it as corrupt and continues at the next call.
 *
 * Costs a few nanoseconds per sample. Takes no lock, allocates nothing.
 */
#ifndef HMD_RING_H
#define HMD_RING_H

#include <stddef.h>
#include <stdint.h>

/* hmd.sample.access_batch.Kind */
#define HMD_KIND_LOAD 0
#define HMD_KIND_STORE 1

/*
 * What answered an access, by its data source (hmd.sample.perf_ring.Level). L3 includes caches of
 * other sockets, a fill buffer is a line that was on its way.
 */
#define HMD_LEVEL_UNKNOWN 0
#define HMD_LEVEL_L1 1
#define HMD_LEVEL_L2 2
#define HMD_LEVEL_L3 3
#define HMD_LEVEL_FILL_BUFFER 4
#define HMD_LEVEL_MEMORY 5
#define HMD_LEVEL_REMOTE_MEMORY 6
#define HMD_LEVEL_CXL_MEMORY 7
#define HMD_LEVEL_PERSISTENT_MEMORY 8

/*
 * Columns of the caller, `capacity` rows each; rows are appended at `count`. Names as in
 * hmd.sample.access_batch.COLUMNS; `latency` is the weight of perf, in units of the writer.
 */
struct hmd_ring_columns {
	uint64_t *address, *physical, *time_ns, *instructions;
	uint32_t *pid, *thread, *latency, *period;
	uint16_t *cpu;
	uint8_t *kind;
	/* NULL where nobody asks: what answered, and where the instruction is */
	uint8_t *level;
	uint64_t *code_address;
	size_t capacity, count;
	/* Rows of a known process that hmd_ring_keep() dropped because they have no address, in all. */
	uint64_t without_address;
};

struct hmd_ring_counts {
	uint64_t samples, lost, throttled, unthrottled;
	uint64_t skipped; /* records of types that the sampler does not use */
	uint64_t corrupt; /* records that could not be read, and rings discarded */
	/* Samples that are not in the columns: of accesses that hit the first-level cache, ... */
	uint64_t cached_stores, cached_loads;
	uint64_t kernel_stores, kernel_loads; /* ... of addresses of the kernel, cached or not, ... */
	uint64_t guest; /* ... and of guests of virtual machines, whose addresses are their own */
};

struct hmd_ring_source {
	void *header;
	const void *data;
	uint64_t data_bytes;  /* power of two, fixed at open: the header's value is not trusted */
	uint64_t sample_type; /* of fixed-size fields only, see hmd_ring_sample_bytes() */
	uint8_t kind;         /* of samples whose data source does not name it */
};

/* Bytes of a sample record of this type with its header; 0 if the size of a field varies. */
size_t hmd_ring_sample_bytes(uint64_t sample_type);

/*
 * Moves the records of the ring into the columns. Samples that do not fit are lost, so that the
 * next call gets current ones; returns 1 if there were any, else 0. Reads at most data_bytes / 8
 * records per call.
 */
int hmd_ring_drain(const struct hmd_ring_source *source, struct hmd_ring_columns *columns,
		   struct hmd_ring_counts *counts);

/*
 * Copies whole records out of a ring without samples, oldest first, and frees their room. Returns
 * the bytes copied; a ring with an invalid record is discarded.
 */
size_t hmd_ring_bytes(const struct hmd_ring_source *source, void *out, size_t capacity);

/* What sizes the fields of a sample (struct perf_event_attr); registers in words. */
struct hmd_sample_format {
	uint64_t sample_type, read_format, branch_sample_type;
	uint32_t user_registers, interrupt_registers;
};

/* Records of this type and above are perf's own, not the kernel's (PERF_RECORD_USER_TYPE_START). */
#define HMD_FIRST_TOOL_RECORD 64

/* Records in memory: where each begins, its type, and the word that identifies its event. */
struct hmd_record_list {
	uint32_t *offset, *type;
	uint64_t *id;
	size_t capacity, count, bytes;
};

/*
 * Lists the records of a file's part that begin one after the other, up to the first that is not
 * whole or has an impossible size, and no further than one of perf's own, which is the last, except
 * those that say where a round of records ends. `bytes` is where the listed ones end. `id_word` is the word with the event's id, 0: none.
 */
void hmd_records_split(const void *data, size_t bytes, size_t id_word,
		       struct hmd_record_list *list);

/*
 * Reads `count` listed records as a ring's, samples with fields of any size: those of one event.
 * What a cache answered and the kernel's addresses are among them; samples of guests are not.
 */
void hmd_records_read(const struct hmd_sample_format *format, uint8_t kind, const void *data,
		      const uint32_t *offset, size_t count, struct hmd_ring_columns *columns,
		      struct hmd_ring_counts *counts);

/* The most distinct values of a call of hmd_ring_distinct(). */
#define HMD_MAX_DISTINCT 16384

/*
 * Fills `values` with the distinct values of a column in order of first occurrence, and `which` with
 * the index of each row's value. Returns their number, at most HMD_MAX_DISTINCT; rows of further
 * values get -1.
 */
size_t hmd_ring_distinct(const uint32_t *column, size_t rows, uint32_t *values, int32_t *which);

/*
 * Keeps the rows of a known process (0 or above) with an address above 0 and below `end`, in order,
 * in the columns and in `process`. Returns their number.
 */
size_t hmd_ring_keep(struct hmd_ring_columns *columns, int32_t *process, uint64_t end);

#endif
