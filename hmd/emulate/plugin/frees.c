/* SPDX-License-Identifier: MIT */
#include "frees.h"
#include "machine.h"

#define MAX_CODE 15 /* bytes of an x86 instruction at most */

/* Numbers of registers in the x86-64 encoding. */
enum { RAX = 0, RDX = 2, RSI = 6, RDI = 7, R10 = 10 };

static uint64_t value_of(struct vcpu *vcpu, unsigned number)
{
	uint64_t value = 0;

	return vcpu_register(vcpu, machine.general[number], &value) ? value : 0;
}

static void on_system_call(unsigned index, void *remaining)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	struct freed_range range;

	if (!vcpu->running || !recording_wants(&machine.recording, index))
		return;

	struct system_call call = {
		.number = value_of(vcpu, RAX),
		.first = value_of(vcpu, RDI),
		.second = value_of(vcpu, RSI),
		.third = value_of(vcpu, RDX),
		.fourth = value_of(vcpu, R10),
	};
	if (freed_by(&call, &range))
		recording_free(&machine.recording, index,
			       instructions_of(vcpu) - (uintptr_t)remaining, &range);
}

void frees_instrument(struct qemu_plugin_insn *insn, size_t remaining)
{
	uint8_t code[MAX_CODE];
	size_t size = qemu_plugin_insn_data(insn, code, sizeof(code));

	if (machine.recording.miss && is_system_call(code, size))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_system_call, QEMU_PLUGIN_CB_R_REGS,
						       (void *)(uintptr_t)remaining);
}
