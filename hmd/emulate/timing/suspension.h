/* SPDX-License-Identifier: MIT */
/*
 * Time in which a vCPU executes none of the program's instructions: sampling records, interrupts.
 *
 * Published figures say by how much a program slows down for each, net of what overlaps. So all
 * that is on its way to the vCPU comes later by as much: no miss is hidden behind a suspension.
 */
#ifndef HMD_TIMING_SUSPENSION_H
#define HMD_TIMING_SUSPENSION_H

#include "vcpu.h"

#pragma GCC visibility push(hidden)

/* Advance a vCPU's clock by `ps` of busy time. */
void vcpu_suspend(struct timing *timing, struct vcpu *vcpu, uint64_t ps);

#pragma GCC visibility pop

#endif
