/* SPDX-License-Identifier: MIT */
/*
 * Memory that the plugin shares with the guest and with the launcher.
 *
 * One file or memfd of the host. QEMU maps it as the BAR of an ivshmem device, which a guest finds
 * as /sys/bus/pci/devices/.../resource2 of vendor 0x1af4, device 0x1110. Little endian throughout.
 *
 *     0                 struct shared_header, then the control words that guest or launcher write
 *     counters_offset   struct shared_vcpu, one a vCPU, counters_stride apart
 *     ring_offset       perf rings, one a vCPU, ring_stride apart: a perf_event_mmap_page of 4096
 *                       bytes, then ring_data_bytes of records (perf_event_open(2))
 *
 * hmd/linux/emulator_memory.py reads this; the offsets below are fixed by assertions.
 *
 * Any program of the guest reads the modelled clock by one aligned 64-bit load of header.clock_ps,
 * which is at most 2 us of host time behind the running vCPUs.
 */
#ifndef HMD_PLUGIN_SHARED_H
#define HMD_PLUGIN_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "timing.h"

#define SHARED_MAGIC 0x3130554d45444d48ull /* "HMDEMU01" */
#define SHARED_VERSION 4
#define SHARED_PAGE 4096

struct shared_header {
	uint64_t magic; /* written last */
	uint32_t version;
	uint32_t vcpus;
	uint32_t nodes;
	uint32_t pad;
	uint64_t counters_offset;
	uint64_t ring_offset;
	uint64_t ring_stride;
	uint64_t ring_data_bytes; /* a power of two */

	/* Control, written by the guest or the launcher at any time */
	uint64_t load_period;  /* sampling period of load misses; 0: no samples */
	uint64_t store_period; /* of all stores */
	uint32_t ldlat_ns;     /* loads of a lower latency are not counted for sampling */
	uint32_t enabled;      /* 1: sampling is on */
	uint32_t running;      /* 1: the timing model is on; off while a guest boots */

	/* Written by the plugin */
	uint32_t armed; /* 1: code is instrumented; some milliseconds after running is set */
	uint64_t counters_stride;
	double dilation; /* host time over modelled time; may be changed while not running */
	/* clock_ps changes all the time: off the control words' line */
	uint32_t recorded_vcpus;    /* control: the vCPUs whose misses are recorded, one bit each */
	uint32_t each_interrupts;   /* control: 1: the kernel takes an interrupt for each sample */
	uint64_t recorded;          /* records so far; the start of a recording sets it to 0 */
	uint64_t pair_period;       /* control: of a second counter of load misses; 0: none */
	uint64_t prefetched_period; /* control: of loads of prefetched lines; 0: none */
	uint32_t watched_vcpus;     /* control: the vCPUs of awake_ps, one bit each */
	uint32_t selection;         /* control: enum pebs_selection */
	uint64_t awake_ps; /* modelled time in which one of them or more did not halt */
	uint32_t tag_interval; /* control: loads between two that a free tag selects, on average */
	uint32_t kernel_mode;  /* control: 1: accesses in kernel mode are sampled too */
	uint64_t pad3[4];
	uint64_t clock_ps; /* modelled time of the machine: the maximum over its vCPUs */
};

/*
 * Counters of one vCPU. Each word before `sequence` is valid at any time. The others are one
 * consistent snapshot, at most a millisecond of running time old: read it again if `sequence` was
 * odd or has changed.
 */
struct shared_vcpu {
	uint64_t clock_ps; /* modelled time of this vCPU, live */
	uint64_t load_samples, store_samples;
	uint64_t lost_samples; /* did not fit into the ring */
	uint64_t sequence;
	uint64_t host_ns;   /* CLOCK_MONOTONIC of the host at the snapshot */
	uint64_t paced_ns;  /* host time waited by pacing */
	uint64_t behind_ns; /* host time by which emulation was slower than the dilation allows */
	struct timing_vcpu_counters counters;
};

_Static_assert(offsetof(struct shared_header, counters_offset) == 24, "layout");
_Static_assert(offsetof(struct shared_header, load_period) == 56, "layout");
_Static_assert(offsetof(struct shared_header, running) == 80, "layout");
_Static_assert(offsetof(struct shared_header, recorded_vcpus) == 104, "layout");
_Static_assert(offsetof(struct shared_header, pair_period) == 120, "layout");
_Static_assert(offsetof(struct shared_header, watched_vcpus) == 136, "layout");
_Static_assert(offsetof(struct shared_header, tag_interval) == 152, "layout");
_Static_assert(offsetof(struct shared_header, clock_ps) == 192, "layout");
_Static_assert(offsetof(struct shared_vcpu, sequence) == 32, "layout");
_Static_assert(offsetof(struct shared_vcpu, counters) == 64, "layout");
_Static_assert(sizeof(struct timing_vcpu_counters) == 8 * (9 + 8 * TIMING_MAX_NODES), "layout");

struct perf_ring_page;

struct shared {
	struct shared_header *header;
	uint64_t size;
};

/* Map the file and lay it out for so many vCPUs; 0, or -1 with one line in *why. */
int shared_open(struct shared *shared, const char *path, const struct timing_params *params,
		double dilation, const char **why);

struct shared_vcpu *shared_vcpu(const struct shared *shared, unsigned vcpu);
struct perf_ring_page *shared_ring_page(const struct shared *shared, unsigned vcpu);

/* Raise the machine's clock to this vCPU's. */
static inline void shared_advance_clock(struct shared_header *header, uint64_t clock_ps)
{
	uint64_t seen = __atomic_load_n(&header->clock_ps, __ATOMIC_RELAXED);

	while (seen < clock_ps &&
	       !__atomic_compare_exchange_n(&header->clock_ps, &seen, clock_ps, 1, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

/* Copy counters into a vCPU's snapshot; one writer a vCPU. */
void shared_publish(struct shared_vcpu *vcpu, const struct timing_vcpu_counters *counters,
		    uint64_t host_ns, uint64_t paced_ns, uint64_t behind_ns);

#endif
