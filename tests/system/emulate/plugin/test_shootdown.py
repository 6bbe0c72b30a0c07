# SPDX-License-Identifier: MIT
"""What the plugin recognises of a TLB shootdown: instructions that flush, and interrupts sent."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

# Assembled by the assembler, so that the encodings are not the reader's own.
FLUSHES = {
    "mov %rax, %cr3": ("ROOT", 0),
    "mov %r12, %cr3": ("ROOT", 12),
    "mov %rdi, %cr4": ("ALL", None),
    "invlpg (%rax)": ("PAGE", 0),
    "invlpg (%rdi)": ("PAGE", 7),
    "invlpg (%r15)": ("PAGE", 15),
    "invlpg 8(%rax)": ("ALL", None),
    "invlpg (%rsp)": ("ALL", None),
    "invlpg (%rip)": ("ALL", None),
    "mov %cr3, %rax": ("NONE", None),
    "mov %rax, %cr0": ("NONE", None),
    "mov %rax, %cr8": ("NONE", None),
    "swapgs": ("NONE", None),
    "lgdt (%rax)": ("NONE", None),
    "nop": ("NONE", None),
    "mov (%rax), %rbx": ("NONE", None),
}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of each instruction."""
    folder = tmp_path_factory.mktemp("flushes")
    found = {}
    for number, text in enumerate(FLUSHES):
        source, binary = folder / f"{number}.s", folder / f"{number}.bin"
        source.write_text(f"{text}\n")
        linked = folder / f"{number}.o"
        subprocess.run(["as", "-o", linked, source], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", linked, binary], check=True)
        found[text] = binary.read_bytes()
    return found


@pytest.mark.parametrize("text", FLUSHES)
def test_invalidation_instruction_is_recognised_by_its_code(
    parts: Any, code: dict[str, bytes], text: str
) -> None:
    kind, register = FLUSHES[text]
    base = parts.ffi.new("unsigned *", 99)
    found = parts.lib.invalidation_of(code[text], len(code[text]), base)
    assert found == getattr(parts.lib, f"INVALIDATION_{kind}")
    assert register is None or base[0] == register


def test_invalidation_of_truncated_code_is_none(parts: Any) -> None:
    for code in (b"", b"\x0f", b"\x0f\x22", b"\x41\x0f\x22"):
        found = parts.lib.invalidation_of(code, len(code), parts.ffi.new("unsigned *"))
        assert found == parts.lib.INVALIDATION_NONE


CALL, CALL_SINGLE, RESCHEDULE = 0xFC, 0xFB, 0xFD
LOGICAL, ALL_BUT_SELF, SELF = 1 << 11, 3 << 18, 1 << 18


@pytest.mark.parametrize(
    ("low", "high", "targets"),
    [
        (CALL_SINGLE | LOGICAL, 0b0100 << 24, {2}),
        (CALL | LOGICAL, 0b1011 << 24, {0, 3}),
        (CALL_SINGLE, 3 << 24, {3}),
        (CALL_SINGLE, 9 << 24, set()),
        (CALL | ALL_BUT_SELF, 0, {0, 2, 3}),
        (CALL | SELF, 0, set()),
        (RESCHEDULE | LOGICAL, 0b0100 << 24, set()),
    ],
)
def test_apic_interrupt_command_names_the_other_cpus(
    parts: Any, low: int, high: int, targets: set[int]
) -> None:
    mask = parts.lib.shootdown_targets(low, high, 1, 4)
    assert {cpu for cpu in range(32) if mask >> cpu & 1} == targets


APIC, EOI, ICR_LOW, ICR_HIGH = 0xFEE00000, 0x0B0, 0x300, 0x310


class Apics:
    """The local APICs of three vCPUs, and what the plugin charged them for."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        lib.shootdown_begin(3)

    def send(self, sender: int, vector: int, mask: int) -> None:
        self.lib.shootdown_device_store(sender, APIC + ICR_HIGH, mask << 24)
        self.lib.shootdown_device_store(sender, APIC + ICR_LOW, vector | LOGICAL)

    def end_interrupt(self, cpu: int) -> None:
        self.lib.shootdown_device_store(cpu, APIC + EOI, 0)

    def charged(self) -> tuple[list[int], list[int]]:
        """Return the rounds sent and received by each vCPU."""
        for cpu in range(3):
            self.lib.shootdown_settle(cpu)
        return list(self.lib.rounds_sent)[:3], list(self.lib.rounds_received)[:3]


@pytest.fixture
def apics(parts: Any) -> Apics:
    return Apics(parts.lib)


def test_shootdown_round_charges_sender_once_and_each_receiver(apics: Apics) -> None:
    apics.send(0, CALL, 0b110)
    for cpu in (1, 2):
        apics.end_interrupt(cpu)
        apics.lib.shootdown_flushed(cpu)
        apics.lib.shootdown_flushed(cpu)  # several pages are one shootdown
        apics.lib.shootdown_settle(0)
    assert apics.charged() == ([1, 0, 0], [0, 1, 1])
    apics.send(0, CALL_SINGLE, 0b010)
    apics.end_interrupt(1)
    apics.lib.shootdown_flushed(1)
    assert apics.charged() == ([2, 0, 0], [0, 2, 1])


def test_shootdown_wake_up_is_not_charged(apics: Apics) -> None:
    """A function call after which the receiver switches to another address space."""
    apics.send(0, CALL_SINGLE, 0b010)
    apics.end_interrupt(1)
    apics.lib.shootdown_ended(1)
    apics.lib.shootdown_flushed(1)
    apics.send(0, RESCHEDULE, 0b100)
    apics.end_interrupt(2)
    apics.lib.shootdown_flushed(2)
    assert apics.charged() == ([0, 0, 0], [0, 0, 0])


def test_shootdown_flush_of_own_is_not_charged(apics: Apics) -> None:
    apics.lib.shootdown_flushed(0)
    apics.send(0, CALL_SINGLE, 0b010)
    apics.lib.shootdown_flushed(1)  # before the interrupt has come
    apics.end_interrupt(1)
    apics.end_interrupt(1)  # that of a timer: the handler before has ended
    apics.lib.shootdown_flushed(1)
    assert apics.charged() == ([0, 0, 0], [0, 0, 0])
