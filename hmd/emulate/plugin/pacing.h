/*
 * Pacing: makes a guest feel modelled time, by holding each vCPU back until the host's clock has
 * advanced by `dilation` times what the vCPU's modelled clock has.
 *
 * A guest's own clock is the host's. So by that clock, everything is `dilation` times slower than
 * the modelled machine, misses and instructions alike, and slow memory is slow by the right ratio.
 *
 * Emulation that falls behind (a slow stretch, a busy host) is not made good by running unpaced
 * for long: only PACING_CREDIT_NS is forgiven, the rest is counted in behind_ns. The clock is read
 * only when PACING_BATCH_NS of host time are due, so that reading it (25 ns) costs about 1 %.
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
	double dilation;      /* 0: no pacing, only the clock is kept */
	uint64_t batch_ps;    /* modelled time between two looks at the clock */
	uint64_t next_ps;     /* modelled time of the next look */
	uint64_t at_ps;       /* modelled time that due_ns belongs to */
	double due_ns;        /* host time that at_ps may be reached at */
	uint64_t now_ns;      /* host time at the last look */
	uint64_t paced_ns, behind_ns;
};

static inline uint64_t pacing_host_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* from the vDSO; its clock source is the TSC */
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pacing_init(struct pacing *pacing, double dilation);

/* Go on with another dilation; one out of bounds, which a guest may have written, is passed over. */
void pacing_set(struct pacing *pacing, double dilation);

/* A vCPU starts or wakes at this modelled time: nothing is owed from before. */
void pacing_start(struct pacing *pacing, uint64_t clock_ps);

/* Look at the clock and wait if need be. */
void pacing_look(struct pacing *pacing, uint64_t clock_ps);

/* True when it is time for pacing_look. */
static inline int pacing_due(const struct pacing *pacing, uint64_t clock_ps)
{
	return clock_ps >= pacing->next_ps;
}

#endif
