/* SPDX-License-Identifier: MIT */
#include "machine.h"

/* LOCAL_TIMER_VECTOR of Linux (arch/x86/include/asm/irq_vectors.h). */
#define TIMER_VECTOR 236
/* Where Linux maps its descriptor table for reading, at any KASLR (CPU_ENTRY_AREA_RO_IDT). */
#define DESCRIPTOR_TABLE 0xfffffe0000000000ull
#define GATE_BYTES 16
/* The initial count of the local APIC's timer. */
#define APIC_TIMER 0xfee00380ull
/* Instructions after which an interrupt ends even if it has not set the timer. */
#define LONGEST 50000

/* Known once the first block of the kernel is translated. Threads that find it find the same. */
static uint64_t handler(void)
{
	static uint64_t known;
	uint64_t found = __atomic_load_n(&known, __ATOMIC_RELAXED);
	GByteArray *gate;

	if (found)
		return found;
	gate = g_byte_array_new();
	if (qemu_plugin_read_memory_vaddr(DESCRIPTOR_TABLE + TIMER_VECTOR * GATE_BYTES, gate,
					  GATE_BYTES))
		found = timer_gate_handler(gate->data);
	g_byte_array_free(gate, 1);
	__atomic_store_n(&known, found, __ATOMIC_RELAXED);
	return found;
}

static void begin(unsigned index, void *block)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	if (!vcpu->running)
		return;
	vcpu->stopped_at = vcpu->score->executed - (uintptr_t)block;
	vcpu->running = false;
	vcpu->in_timer = true;
}

void timer_instrument(struct qemu_plugin_tb *tb, size_t count)
{
	if (qemu_plugin_tb_vaddr(tb) == handler())
		qemu_plugin_register_vcpu_tb_exec_cb(tb, begin, QEMU_PLUGIN_CB_NO_REGS,
						     (void *)count);
}

void timer_device_store(unsigned index, uint64_t paddr, uint64_t remaining)
{
	if (paddr == APIC_TIMER)
		timer_end(index, remaining);
}

void timer_look(unsigned index, uint64_t block)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	if (vcpu->score->executed - block - vcpu->stopped_at > LONGEST)
		timer_end(index, block);
}

void timer_end(unsigned index, uint64_t remaining)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	if (!vcpu->in_timer)
		return;
	vcpu->in_timer = false;
	vcpu->skipped += vcpu->score->executed - remaining - vcpu->stopped_at;
	vcpu->running = true;
}
