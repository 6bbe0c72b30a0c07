/* SPDX-License-Identifier: MIT */
#include "shootdown.h"
#include "machine.h"

#define APIC_PHYS 0xfee00000ull
#define APIC_EOI 0x0b0
#define APIC_ICR_LOW 0x300
#define APIC_ICR_HIGH 0x310

static void send(unsigned index, uint32_t icr_low)
{
	struct shootdown *sender = &machine.vcpu[index].shootdown;
	uint32_t targets = shootdown_targets(icr_low, sender->icr_high, index, machine.vcpus);

	shootdown_settle(index);
	sender->paid = !targets;
	for (; targets; targets &= targets - 1) {
		struct shootdown *target = &machine.vcpu[__builtin_ctz(targets)].shootdown;

		__atomic_store_n(&target->sender, index, __ATOMIC_RELAXED);
		__atomic_store_n(&target->step, SHOOTDOWN_REQUESTED, __ATOMIC_RELEASE);
	}
}

static void end_of_interrupt(struct shootdown *receiver)
{
	enum shootdown_step requested = SHOOTDOWN_REQUESTED;

	if (!__atomic_compare_exchange_n(&receiver->step, &requested, SHOOTDOWN_IN_HANDLER, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED) &&
	    requested == SHOOTDOWN_IN_HANDLER)
		__atomic_store_n(&receiver->step, SHOOTDOWN_NONE, __ATOMIC_RELAXED);
}

void shootdown_device_store(unsigned index, uint64_t paddr, uint32_t value)
{
	switch (paddr - APIC_PHYS) {
	case APIC_ICR_HIGH:
		machine.vcpu[index].shootdown.icr_high = value;
		return;
	case APIC_ICR_LOW:
		send(index, value);
		return;
	case APIC_EOI:
		end_of_interrupt(&machine.vcpu[index].shootdown);
		return;
	}
}

void shootdown_flushed(unsigned index)
{
	struct shootdown *receiver = &machine.vcpu[index].shootdown;
	enum shootdown_step in_handler = SHOOTDOWN_IN_HANDLER;

	if (!__atomic_compare_exchange_n(&receiver->step, &in_handler, SHOOTDOWN_NONE, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	timing_shootdown_received(machine.timing, index);
	__atomic_store_n(&machine.vcpu[receiver->sender].shootdown.answered, true,
			 __ATOMIC_RELEASE);
}

void shootdown_ended(unsigned index)
{
	enum shootdown_step in_handler = SHOOTDOWN_IN_HANDLER;

	__atomic_compare_exchange_n(&machine.vcpu[index].shootdown.step, &in_handler,
				    SHOOTDOWN_NONE, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void shootdown_settle(unsigned index)
{
	struct shootdown *sender = &machine.vcpu[index].shootdown;

	if (!__atomic_exchange_n(&sender->answered, false, __ATOMIC_ACQUIRE) || sender->paid)
		return;
	sender->paid = true;
	timing_shootdown_sent(machine.timing, index);
}
