/* SPDX-License-Identifier: MIT */
/*
 * The modelled time during which at least one of some vCPUs is awake: the runtime of a program of
 * several threads, of which each waits for others in halts.
 *
 * The vCPUs are those of the control word watched_vcpus. A change of it takes effect for each vCPU
 * when it next wakes, so that it is made while they are halted.
 */
#ifndef HMD_PLUGIN_AWAKE_H
#define HMD_PLUGIN_AWAKE_H

#include <pthread.h>
#include <stdint.h>

#include "shared.h"

struct awake {
	pthread_mutex_t lock;
	uint32_t vcpus;             /* watched and awake, one bit each */
	uint64_t from_ps, until_ps; /* of the current interval: its start, and the latest halt */
};

/* A vCPU wakes at this time of its clock. */
void awake_enter(struct awake *awake, const struct shared_header *header, unsigned vcpu,
		 uint64_t clock_ps);

/* A vCPU halts; after the last of them header->awake_ps has grown by the interval. */
void awake_leave(struct awake *awake, struct shared_header *header, unsigned vcpu,
		 uint64_t clock_ps);

#endif
