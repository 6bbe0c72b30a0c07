/* SPDX-License-Identifier: MIT */
/*
 * A process whose accesses are known, for hmd.sample.self_test. It has memory of its own, waits,
 * and does what its parent asks: loads, each address of which the load before it gives, stores, and
 * first touches of pages.
 */
#ifndef HMD_PROBE_H
#define HMD_PROBE_H

#include <stdint.h>

#define HMD_PROBE_PREPARING 0
#define HMD_PROBE_WAITING 1
#define HMD_PROBE_LOADS 2
#define HMD_PROBE_STORES 3
#define HMD_PROBE_TOUCHES 4
#define HMD_PROBE_FAILED 5
#define HMD_PROBE_TOUCHED_PAGES 256

/*
 * Shared by both. Loads go to `bytes` from `load_start` on, one per 128 bytes; stores to as
 * many from `store_start` on; touches to HMD_PROBE_TOUCHED_PAGES pages from `touch_start` on. The
 * counts and the time of loads are sums since the start. `state` is HMD_PROBE_WAITING while the
 * process waits; the parent sets what it is to do. `error` is the errno of HMD_PROBE_FAILED.
 */
struct hmd_probe {
	uint64_t bytes, load_start, store_start, touch_start;
	uint64_t loads, stores, touches, load_ns;
	int32_t state, error;
};

/*
 * Starts the process with twice `bytes` (a power of two from 4096 on) of memory; a round of loads
 * or stores takes at most `round_ns`. It ends with the calling thread, after `max_s` of CPU time,
 * and first of all processes where memory runs out; it sends no SIGCHLD. Returns its pid or -errno.
 */
int hmd_probe_start(uint64_t bytes, uint64_t round_ns, int max_s, struct hmd_probe **probe);

/* Returns 1 while the process exists. */
int hmd_probe_alive(int pid);

/* Kills the process, waits for its end and unmaps `probe`. */
void hmd_probe_end(int pid, struct hmd_probe *probe);

#endif
