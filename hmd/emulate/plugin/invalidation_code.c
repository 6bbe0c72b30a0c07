/* SPDX-License-Identifier: MIT */
#include "invalidation.h"

/*
 * Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: MOV to control registers
 * is 0F 22 /r, INVLPG 0F 01 /7 with a memory operand; a REX prefix may precede them.
 */
#define REX 0x40
#define REX_B 0x01
#define REX_R 0x04
#define TWO_BYTES 0x0f
#define MOV_TO_CONTROL 0x22
#define GROUP_7 0x01
#define GROUP_7_INVLPG 7
#define MOD_INDIRECT 0
#define MOD_REGISTER 3
#define RM_SIB 4
#define RM_RELATIVE 5
#define CR3 3
#define CR4 4

enum invalidation invalidation_of(const uint8_t *code, size_t size, unsigned *number)
{
	uint8_t rex = 0;

	if (size && (code[0] & 0xf0) == REX) {
		rex = code[0];
		code++;
		size--;
	}
	if (size < 3 || code[0] != TWO_BYTES)
		return INVALIDATION_NONE;

	unsigned mod = code[2] >> 6, reg = code[2] >> 3 & 7, rm = code[2] & 7;
	*number = rm + (rex & REX_B ? 8 : 0);
	if (code[1] == MOV_TO_CONTROL && !(rex & REX_R) && reg == CR3)
		return INVALIDATION_ROOT;
	if (code[1] == MOV_TO_CONTROL && !(rex & REX_R) && reg == CR4)
		return INVALIDATION_ALL;
	if (code[1] != GROUP_7 || reg != GROUP_7_INVLPG || mod == MOD_REGISTER)
		return INVALIDATION_NONE;
	if (mod != MOD_INDIRECT || rm == RM_SIB || rm == RM_RELATIVE)
		return INVALIDATION_ALL;
	return INVALIDATION_PAGE;
}
