/* SPDX-License-Identifier: MIT */
#include "pacing.h"

/* Without pacing, a look every so often still keeps the published clocks fresh. */
#define UNPACED_BATCH_PS 1000000

void pacing_init(struct pacing *pacing, double dilation)
{
	*pacing = (struct pacing){ 0 };
	pacing_set(pacing, dilation);
}

void pacing_set(struct pacing *pacing, double dilation)
{
	if (!(dilation >= 0 && dilation <= PACING_MAX_DILATION))
		return;
	pacing->dilation = dilation;
	pacing->batch_ps = UNPACED_BATCH_PS;
	if (dilation > 0)
		pacing->batch_ps = (uint64_t)(PACING_BATCH_NS * 1000.0 / dilation) + 1;
}

void pacing_start(struct pacing *pacing, uint64_t clock_ps)
{
	pacing->now_ns = pacing_host_ns();
	pacing->due_ns = (double)pacing->now_ns;
	pacing->at_ps = clock_ps;
	pacing->next_ps = clock_ps + pacing->batch_ps;
}

static uint64_t wait_until(uint64_t now_ns, uint64_t due_ns)
{
	if (due_ns > now_ns + PACING_MAX_WAIT_NS)
		due_ns = now_ns + PACING_MAX_WAIT_NS;
	while (now_ns < due_ns) {
		__builtin_ia32_pause();
		now_ns = pacing_host_ns();
	}
	return now_ns;
}

void pacing_look(struct pacing *pacing, uint64_t clock_ps)
{
	uint64_t before = pacing_host_ns();

	pacing->now_ns = before;
	pacing->next_ps = clock_ps + pacing->batch_ps;
	if (pacing->dilation <= 0)
		return;

	pacing->due_ns += (double)(clock_ps - pacing->at_ps) * pacing->dilation * 1e-3;
	pacing->at_ps = clock_ps;
	if (pacing->due_ns > (double)before) {
		pacing->now_ns = wait_until(before, (uint64_t)pacing->due_ns + 1);
		pacing->paced_ns += pacing->now_ns - before;
		if (pacing->due_ns > (double)pacing->now_ns)
			pacing->next_ps = clock_ps; /* the rest at the next occasion */
	} else if (pacing->due_ns + PACING_CREDIT_NS < (double)before) {
		double forgiven = (double)before - PACING_CREDIT_NS;

		pacing->behind_ns += (uint64_t)(forgiven - pacing->due_ns);
		pacing->due_ns = forgiven;
	}
}
