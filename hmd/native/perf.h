/* SPDX-License-Identifier: MIT */
/*
 * perf_event_open(2) and operations on its descriptors. Every function returns 0 or a descriptor,
 * or a negative errno, which hmd.sample.perf_events translates.
 */
#ifndef HMD_PERF_H
#define HMD_PERF_H

#include <stddef.h>
#include <stdint.h>

/* The fields of struct perf_event_attr that hmd sets. period 0 counts without sampling. */
struct hmd_perf_event {
	uint32_t type, precise_ip;
	uint64_t config, config1, config2;
	uint64_t sample_type, read_format, period;
	int exclude_kernel, exclude_guest, inherit;
	int monotonic; /* TIME is of CLOCK_MONOTONIC, else of perf's own clock */
};

/* What the header page of a mapped event tells; the kernel writes it when it schedules the event. */
struct hmd_perf_times {
	uint64_t enabled_ns, running_ns; /* running: while the event had a counter */
	double ns_per_tsc;               /* of the time stamp counter, 0 if unknown */
	/* CLOCK_MONOTONIC less perf's own clock; only with known_clock. */
	int64_t monotonic_offset_ns;
	int known_clock;
};

/* Opens the event disabled and close-on-exec. Returns the descriptor. */
int hmd_perf_open(const struct hmd_perf_event *event, int pid, int cpu, int group_fd);

/*
 * Opens an event of a CPU that counts nothing and records forks, exits and new names of all tasks
 * there, or its switches to other threads, each with its time of CLOCK_MONOTONIC; disabled and
 * close-on-exec. Returns the descriptor.
 */
int hmd_perf_open_log(int cpu, int switches);

/* Maps the header page and `pages` (a power of two) of data. */
int hmd_perf_map(int fd, size_t pages, void **header, void **data, uint64_t *data_bytes);
/* Reads the header page of a mapped event. */
void hmd_perf_read_times(const void *header, struct hmd_perf_times *times);

int hmd_perf_unmap(void *header, size_t pages);

int hmd_perf_enable(int fd);
int hmd_perf_disable(int fd);
int hmd_perf_set_period(int fd, uint64_t period);
int hmd_perf_close(int fd);

#endif
