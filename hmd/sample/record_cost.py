"""What a sample's record costs the program that it is taken on.

The CPU writes a record in microcode, or interrupts the program for it. That is time of the program,
not of the daemon, so that ``sample.cpu_quota`` does not see it. The timing model of the emulated
machine and the simulator charge PEBS by the same figures (``hmd/emulate/preset.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RecordCost:
    """A record takes ``record_ns``, and an interrupt of ``interrupt_ns`` empties a full buffer."""

    record_ns: float
    interrupt_ns: float
    buffer_records: int

    def seconds(self, *, buffered: bool = True) -> float:
        """Return the mean time of a record; not ``buffered``: each has its interrupt."""
        records = self.buffer_records if buffered else 1
        return (self.record_ns + self.interrupt_ns / records) * 1e-9


@dataclass(frozen=True, slots=True)
class RecordTime:
    """Sums of a sampler: ``taken_s`` of the CPU with most records, by a clock at ``now_s``.

    The clock is that of the programs, which is not the daemon's in the emulated machine.
    """

    taken_s: float = 0.0
    now_s: float = 0.0

    def share_since(self, earlier: RecordTime) -> float:
        """Return the share of the CPU's time that records have taken since an earlier reading."""
        elapsed_s = self.now_s - earlier.now_s
        return (self.taken_s - earlier.taken_s) / elapsed_s if elapsed_s > 0 else 0.0


PEBS_RECORD: Final = RecordCost(record_ns=250, interrupt_ns=4000, buffer_records=327)
"""PEBS of Skylake and later.

Akiyama and Hirofuchi, Quantitative Evaluation of Intel PEBS Overhead, ROSS 2017,
doi 10.1145/3095770.3095773: 200 to 300 ns per record. Kernel commit 3569c0d7c544, kernbench with
one interrupt per record against a full buffer: some 12,000 cycles per interrupt. A buffer of 64 KiB
(PEBS_BUFFER_SIZE) holds 327 records of 200 bytes.
"""

IBS_RECORD: Final = RecordCost(record_ns=0, interrupt_ns=4000, buffer_records=1)
"""AMD's IBS has no buffer: each record is an interrupt, taken to cost what one of PEBS does."""
