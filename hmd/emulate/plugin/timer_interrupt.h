/* SPDX-License-Identifier: MIT */
/*
 * Timer interrupts, which the model does not charge.
 *
 * The guest's clock is the host's: it runs `dilation` times as fast as the modelled one, and more
 * where the host has fewer CPUs than the guest keeps busy. The kernel's 250 ticks per second of it
 * would take 0.3 to 10 % of a program's modelled time, by how busy the host is; on the modelled
 * machine they take 0.05 %.
 *
 * QEMU reports no interrupts to plugins. A timer interrupt begins at the handler that the
 * descriptor table names for the vector of Linux's local timer, and ends when the handler sets the
 * local APIC's timer again. What the kernel does after that, such as softirqs, work that a task asked
 * for and a switch of tasks, is charged.
 */
#ifndef HMD_PLUGIN_TIMER_INTERRUPT_H
#define HMD_PLUGIN_TIMER_INTERRUPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The handler's address in a gate of 16 bytes of an interrupt descriptor table. */
uint64_t timer_gate_handler(const uint8_t *gate);

struct qemu_plugin_tb;

/* Instrument a block of the kernel of `count` instructions, if the handler begins with it. */
void timer_instrument(struct qemu_plugin_tb *tb, size_t count);

/* A store to a device at this address, by an instruction with which `remaining` of its block end. */
void timer_device_store(unsigned vcpu, uint64_t paddr, uint64_t remaining);

/* Every so many instructions of an interrupt, at a block of this many. */
void timer_look(unsigned vcpu, uint64_t block);

/* End an interrupt, if there is one, before the last `remaining` instructions that were counted. */
void timer_end(unsigned vcpu, uint64_t remaining);

#endif
