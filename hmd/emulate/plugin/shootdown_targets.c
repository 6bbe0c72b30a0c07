/* SPDX-License-Identifier: MIT */
#include "shootdown.h"

#define ICR_VECTOR 0xffu
#define ICR_LOGICAL (1u << 11)
#define ICR_SHORTHAND(low) ((low) >> 18 & 3)
#define ICR_DESTINATION(high) ((high) >> 24)

enum shorthand { DESTINATION_FIELD, SELF, ALL, ALL_BUT_SELF };

/* CALL_FUNCTION_VECTOR and CALL_FUNCTION_SINGLE_VECTOR, arch/x86/include/asm/irq_vectors.h */
#define VECTOR_CALL 0xfc
#define VECTOR_CALL_SINGLE 0xfb

uint32_t shootdown_targets(uint32_t icr_low, uint32_t icr_high, unsigned self, unsigned vcpus)
{
	uint32_t vector = icr_low & ICR_VECTOR, others = ((1u << vcpus) - 1) & ~(1u << self);
	uint32_t destination = ICR_DESTINATION(icr_high);

	if (vector != VECTOR_CALL && vector != VECTOR_CALL_SINGLE)
		return 0;
	switch ((enum shorthand)ICR_SHORTHAND(icr_low)) {
	case SELF:
		return 0;
	case ALL:
	case ALL_BUT_SELF:
		return others;
	case DESTINATION_FIELD:
		break;
	}
	if (icr_low & ICR_LOGICAL) /* flat: a bit per CPU */
		return destination & others;
	return destination < vcpus ? 1u << destination & others : 0;
}
