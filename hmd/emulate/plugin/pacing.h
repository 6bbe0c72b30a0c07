/* SPDX-License-Identifier: MIT */
/*
 * Pacing: each vCPU waits until the host's clock has advanced by `dilation` times as much as the
 * vCPU's modelled clock.
 *
 * A guest's clock is the host's. By that clock everything is `dilation` times slower than on the
 * modelled machine, misses and instructions alike, so that slow memory is slow by the right ratio.
 *
 * A vCPU whose emulation falls behind (slow code, a busy host) catches up by at most
 * PACING_CREDIT_NS without pacing; the rest counts in behind_ns. The clock is read only every
 * PACING_BATCH_NS of host time, so that the read (25 ns) costs about 1 %.
 */
#ifndef HMD_PLUGIN_PACING_H
#define HMD_PLUGIN_PACING_H

#include <stdint.h>
#include <time.h>

#define PACING_BATCH_NS 2000
#define PACING_MAX_DILATION 10000
#define PACING_CREDIT_NS 20000
/* Longest wait at once: interrupts and other vCPUs' exclusive sections wait for us. */
#define PACING_MAX_WAIT_NS 1000000

struct pacing {
	double dilation;   /* 0: no pacing, only the clock is kept */
	uint64_t batch_ps; /* modelled time between two reads of the clock */
	uint64_t next_ps;  /* modelled time of the next read */
	uint64_t at_ps;    /* modelled time that due_ns belongs to */
	double due_ns;     /* host time that at_ps may be reached at */
	uint64_t now_ns;   /* host time of the last read */
	uint64_t paced_ns, behind_ns;
};

static inline uint64_t pacing_host_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* from the vDSO; its clock source is the TSC */
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pacing_init(struct pacing *pacing, double dilation);

/* Continue with another dilation; a value out of bounds, which a guest may write, is ignored. */
void pacing_set(struct pacing *pacing, double dilation);

/* A vCPU starts or wakes at this modelled time: no debt from before. */
void pacing_start(struct pacing *pacing, uint64_t clock_ps);

/* Read the clock and wait if the vCPU is ahead. */
void pacing_look(struct pacing *pacing, uint64_t clock_ps);

/* Whether pacing_look is due. */
static inline int pacing_due(const struct pacing *pacing, uint64_t clock_ps)
{
	return clock_ps >= pacing->next_ps;
}

#endif
