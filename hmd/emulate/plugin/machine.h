/* SPDX-License-Identifier: MIT */
/*
 * The plugin's state: the vCPUs, and what the plugin's files share.
 *
 * QEMU's callbacks carry no user context, so there is one global machine.
 */
#ifndef HMD_PLUGIN_MACHINE_H
#define HMD_PLUGIN_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "awake.h"
#include "frees.h"
#include "invalidation.h"
#include "pacing.h"
#include "page_walk.h"
#include "pebs.h"
#include "qemu_plugin_api.h"
#include "recording.h"
#include "shared.h"
#include "shootdown.h"
#include "timer_interrupt.h"
#include "timing.h"
#include "translation.h"

/* Counters that translated code updates inline; two cache lines of the host per vCPU. */
struct score {
	uint64_t executed; /* instructions, added as their block begins; see vcpu_tick */
	uint64_t kernel;   /* 1: kernel code has run since this was cleared */
	uint64_t pad[14];
};

struct vcpu {
	struct score *score;
	/* Both on the scale of score->executed, modulo 2^64. */
	uint64_t skipped;    /* executed while the model did not run */
	uint64_t stopped_at; /* when it stopped last */
	bool running;
	bool in_timer; /* in a timer interrupt, which is not charged; not running */
	uint64_t published_ns;
	struct pacing pacing;
	/* Counted for sampling since the last sample of each; load misses by two counters. */
	uint64_t loads, pair_loads, prefetched_loads, stores;
	uint64_t store_limit; /* stores at which one is sampled; UINT64_MAX: none */
	bool kernel_mode;     /* accesses in kernel mode are sampled too */
	struct pebs_tag tag;
	struct pebs_ring ring;
	struct shared_vcpu *shared;
	GByteArray *bytes; /* for what QEMU returns: registers, memory */
	struct page_walk walk;
	struct shootdown shootdown;
	struct translations user_pages, kernel_pages;
} __attribute__((aligned(128)));

struct machine {
	struct timing *timing;
	struct shared_header *header;
	struct recording recording; /* of misses; used only where a file was given */
	struct qemu_plugin_scoreboard *scores;
	struct qemu_plugin_register *cr3, *general[INVALIDATION_REGISTERS];
	bool kernel; /* accesses of the kernel are charged */
	/* By which no vCPU may run ahead of another that shares its cache; 0: any. */
	uint64_t step_ps;
	struct awake awake;
	uint64_t tick; /* instructions between two calls of vcpu_tick */
	bool arming, armed;
	unsigned vcpus;
	struct vcpu vcpu[TIMING_MAX_VCPUS];
};

extern struct machine machine;

static inline uint64_t instructions_of(const struct vcpu *vcpu)
{
	return vcpu->score->executed - vcpu->skipped;
}

static inline bool model_wanted(void)
{
	return __atomic_load_n(&machine.header->running, __ATOMIC_ACQUIRE);
}

/* registers.c: registers of the calling vCPU */

/* What cr3 holds but PCID and control bits. */
#define REGISTERS_ROOT 0x000ffffffffff000ull

void registers_find(const qemu_plugin_reg_descriptor *found, unsigned count);
/* False where there is no such register. */
bool vcpu_register(struct vcpu *vcpu, struct qemu_plugin_register *handle, uint64_t *value);
/* The guest-physical address of the root of its page tables; 0 if it is not known. */
uint64_t vcpu_root(struct vcpu *vcpu);

/* vcpu.c: a vCPU on the model's clock */

/* Resume the model, at an instruction before which `executed` is this many too large. */
void vcpu_start(struct vcpu *vcpu, unsigned index, uint64_t remaining);
void vcpu_halt(struct vcpu *vcpu, unsigned index);
void vcpu_resume(struct vcpu *vcpu, unsigned index);
/* Publish the clock, wait if it is ahead of host time or others, and check that the model runs. */
void vcpu_look(struct vcpu *vcpu, unsigned index, uint64_t clock_ps);
/* Every so many instructions, at a block of this many: start over counting `executed`, and look. */
void vcpu_tick(struct vcpu *vcpu, unsigned index, uint64_t block);
void vcpu_publish(struct vcpu *vcpu, unsigned index, uint64_t host_ns);

/* sampling.c: accesses, for the emulated PMU */

/* Where an access came from and what it accessed. */
struct sampled_access {
	uint64_t vaddr, paddr, ip;
};

/* Take the control words over; they take effect for stores from here on. */
void sampling_control(struct vcpu *vcpu);
/* A load from memory. */
void sampling_load(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		   struct sampled_access access);
/* A store that sampling_store_due() has said is to be sampled. */
void sampling_store(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		    struct sampled_access access);

/* Count a store: every one of the sampled modes, hits of the first level too. */
static inline bool sampling_store_due(struct vcpu *vcpu)
{
	return __builtin_expect(++vcpu->stores >= vcpu->store_limit, 0);
}

/* Whether the PMU sees an access: of kernel mode, only where it is to. */
static inline bool sampling_sees(const struct vcpu *vcpu, uint32_t flags)
{
	return !(flags & TIMING_KERNEL_MODE) || vcpu->kernel_mode;
}

/* instrument.c: the code that a translation block gets */
void instrument_block(struct qemu_plugin_tb *tb);

#endif
