/* SPDX-License-Identifier: MIT */
#include "awake.h"

void awake_enter(struct awake *awake, const struct shared_header *header, unsigned vcpu,
		 uint64_t clock_ps)
{
	const uint32_t bit = UINT32_C(1) << vcpu;

	if (!(__atomic_load_n(&header->watched_vcpus, __ATOMIC_RELAXED) & bit))
		return;
	pthread_mutex_lock(&awake->lock);
	if (!awake->vcpus) {
		/* Not before the end of the last interval, whose time is counted already. */
		awake->from_ps = clock_ps > awake->until_ps ? clock_ps : awake->until_ps;
		awake->until_ps = awake->from_ps;
	}
	__atomic_store_n(&awake->vcpus, awake->vcpus | bit, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&awake->lock);
}

void awake_leave(struct awake *awake, struct shared_header *header, unsigned vcpu,
		 uint64_t clock_ps)
{
	const uint32_t bit = UINT32_C(1) << vcpu;

	/* Only this vCPU sets and clears its bit. */
	if (!(__atomic_load_n(&awake->vcpus, __ATOMIC_RELAXED) & bit))
		return;
	pthread_mutex_lock(&awake->lock);
	__atomic_store_n(&awake->vcpus, awake->vcpus & ~bit, __ATOMIC_RELAXED);
	if (clock_ps > awake->until_ps)
		awake->until_ps = clock_ps;
	if (!awake->vcpus)
		__atomic_fetch_add(&header->awake_ps, awake->until_ps - awake->from_ps,
				   __ATOMIC_RELAXED);
	pthread_mutex_unlock(&awake->lock);
}
