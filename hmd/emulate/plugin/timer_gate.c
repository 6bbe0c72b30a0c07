/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "timer_interrupt.h"

/* Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "64-Bit Mode IDT". */
uint64_t timer_gate_handler(const uint8_t *gate)
{
	uint16_t low, middle;
	uint32_t high;

	memcpy(&low, gate, sizeof(low));
	memcpy(&middle, gate + 6, sizeof(middle));
	memcpy(&high, gate + 8, sizeof(high));
	return (uint64_t)high << 32 | (uint64_t)middle << 16 | low;
}
