/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "machine.h"

/* Names of the target description's general registers, in the order of their x86-64 encoding. */
static const char *const general_names[INVALIDATION_REGISTERS] = {
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
	"r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15",
};

void registers_find(const qemu_plugin_reg_descriptor *found, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (!strcmp(found[i].name, "cr3"))
			machine.cr3 = found[i].handle;
		for (unsigned number = 0; number < INVALIDATION_REGISTERS; number++)
			if (!strcmp(found[i].name, general_names[number]))
				machine.general[number] = found[i].handle;
	}
}

bool vcpu_register(struct vcpu *vcpu, struct qemu_plugin_register *handle, uint64_t *value)
{
	g_byte_array_set_size(vcpu->bytes, 0);
	if (!handle || qemu_plugin_read_register(handle, vcpu->bytes) < (int)sizeof(*value))
		return false;
	memcpy(value, vcpu->bytes->data, sizeof(*value));
	return true;
}

uint64_t vcpu_root(struct vcpu *vcpu)
{
	uint64_t cr3;

	return vcpu_register(vcpu, machine.cr3, &cr3) ? cr3 & REGISTERS_ROOT : 0;
}
