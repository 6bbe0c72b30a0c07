/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "invalidation.h"
#include "machine.h"

#define MAX_CODE 15 /* bytes of an x86 instruction at most */

static void on_flush(unsigned index, void *unused)
{
	(void)unused;
	page_walk_forget(&machine.vcpu[index].walk);
	timing_flush(machine.timing, index);
}

/* A load of the root that is there already is a flush, any other a switch of address spaces. */
static void on_load_root(unsigned index, void *source)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	uint64_t root = vcpu_root(vcpu), loaded;

	on_flush(index, NULL);
	if (vcpu_register(vcpu, machine.general[(uintptr_t)source], &loaded) &&
	    (loaded & REGISTERS_ROOT) == root)
		shootdown_flushed(index);
	else
		shootdown_ended(index);
}

static void on_flush_page(unsigned index, void *base)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	uint64_t vaddr;

	if (!vcpu_register(vcpu, machine.general[(uintptr_t)base], &vaddr)) {
		on_flush(index, NULL);
		return;
	}
	page_walk_forget_region(&vcpu->walk, vaddr);
	timing_flush_page(machine.timing, index, vaddr);
	shootdown_flushed(index);
}

void invalidation_instrument(struct qemu_plugin_insn *insn)
{
	uint8_t code[MAX_CODE];
	unsigned number = 0;
	size_t size = qemu_plugin_insn_data(insn, code, sizeof(code));

	switch (invalidation_of(code, size, &number)) {
	case INVALIDATION_ALL:
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_flush, QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
		return;
	case INVALIDATION_ROOT:
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_load_root, QEMU_PLUGIN_CB_R_REGS,
						       (void *)(uintptr_t)number);
		return;
	case INVALIDATION_PAGE:
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_flush_page, QEMU_PLUGIN_CB_R_REGS,
						       (void *)(uintptr_t)number);
		return;
	case INVALIDATION_NONE:
		return;
	}
}
