# SPDX-License-Identifier: MIT
"""Timer interrupts: where they begin and end, and that their instructions are not charged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

HANDLER = 0xFFFFFFFF81E00E10
APIC_TIMER, APIC_END_OF_INTERRUPT = 0xFEE00380, 0xFEE000B0
BEFORE, FIRST_BLOCK = 100, 7


def gate(handler: int) -> bytes:
    """Return an interrupt gate as the processor reads it: the address lies in three parts."""
    low, middle, high = handler & 0xFFFF, handler >> 16 & 0xFFFF, handler >> 32
    return struct.pack("<HHHHII", low, 0x10, 0x8E00, middle, high, 0)


@pytest.fixture
def interrupted(parts: Any) -> Iterator[Any]:
    """The library, with a vCPU that has executed the first block of the handler."""
    assert parts.lib.timer_begin(gate(HANDLER), HANDLER, FIRST_BLOCK)
    parts.lib.timer_executes(BEFORE, False)
    parts.lib.timer_executes(FIRST_BLOCK, True)
    yield parts.lib


def test_gate_gives_the_address_of_its_handler(parts: Any) -> None:
    assert parts.lib.timer_gate_handler(gate(HANDLER)) == HANDLER


def test_only_the_block_at_the_handler_begins_an_interrupt(parts: Any) -> None:
    assert not parts.lib.timer_begin(gate(HANDLER), HANDLER + 4, FIRST_BLOCK)
    assert parts.lib.timer_begin(gate(HANDLER), HANDLER, FIRST_BLOCK)


def test_instructions_up_to_the_store_to_the_timer_are_not_charged(interrupted: Any) -> None:
    assert not interrupted.timer_running()
    interrupted.timer_executes(2000, False)
    interrupted.timer_device_store(0, APIC_END_OF_INTERRUPT, 10)
    assert not interrupted.timer_running()
    interrupted.timer_executes(20, False)
    interrupted.timer_device_store(0, APIC_TIMER, 5)
    assert interrupted.timer_running()
    assert interrupted.timer_charged() == BEFORE + 5
    interrupted.timer_executes(30, False)
    assert interrupted.timer_charged() == BEFORE + 35


def test_interrupt_that_never_sets_the_timer_ends(interrupted: Any) -> None:
    interrupted.timer_executes(40_000, False)
    interrupted.timer_look(0, 10)
    assert not interrupted.timer_running()
    interrupted.timer_executes(20_000, False)
    interrupted.timer_look(0, 10)
    assert interrupted.timer_running()
    assert interrupted.timer_charged() == BEFORE + 10


def test_store_to_the_timer_outside_an_interrupt_changes_nothing(interrupted: Any) -> None:
    interrupted.timer_end(0, 0)
    interrupted.timer_executes(50, False)
    interrupted.timer_device_store(0, APIC_TIMER, 5)
    assert interrupted.timer_running()
    assert interrupted.timer_charged() == BEFORE + 50
