/* SPDX-License-Identifier: MIT */
/*
 * TLB shootdowns: a vCPU interrupts those that run an address space, they flush and answer.
 *
 * The kernel's instructions count as always. What they do not show is added to the clocks
 * (TIMING_SHOOTDOWN): delivery of the interrupts, entry and return, the sender's wait.
 *
 * QEMU reports no interrupts to plugins. A shootdown is recognised by its steps:
 * 1. The sender writes the interrupt command register of its local APIC (xAPIC, registers in
 *    memory: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Issuing
 *    Interprocessor Interrupts") with a vector of Linux's function calls.
 * 2. A receiver signals the end of interrupt, which Linux does first of all in such a handler.
 * 3. The receiver invalidates a page, or loads the root of page tables that it has already.
 * Other function calls, such as wake-ups of tasks, stop at 2, or switch the address space at 3.
 */
#ifndef HMD_PLUGIN_SHOOTDOWN_H
#define HMD_PLUGIN_SHOOTDOWN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The vCPUs that a write of the interrupt command register interrupts by a function call of Linux,
 * one bit each; 0 for other interrupts.
 */
uint32_t shootdown_targets(uint32_t icr_low, uint32_t icr_high, unsigned self, unsigned vcpus);

enum shootdown_step { SHOOTDOWN_NONE, SHOOTDOWN_REQUESTED, SHOOTDOWN_IN_HANDLER };

struct shootdown {
	uint32_t icr_high;        /* as last written */
	bool paid;                /* this vCPU has been charged for its latest round */
	bool answered;            /* set by receivers of that round */
	enum shootdown_step step; /* of a round in which it is a receiver */
	unsigned sender;
};

/* A store of the kernel to a device register at this guest-physical address. */
void shootdown_device_store(unsigned vcpu, uint64_t paddr, uint32_t value);
/* The vCPU has flushed translations of its address space, or has switched to another. */
void shootdown_flushed(unsigned vcpu);
void shootdown_ended(unsigned vcpu);
/* Charge the vCPU for a round that it sent and that was answered. */
void shootdown_settle(unsigned vcpu);

#endif
