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
