"""A trace whose samples stay in its file, for recordings larger than memory.

The file is read once for its outline, and once more per pass over all samples, one block at a
time (docs/reference/trace-format.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hmd.trace.blocks import DamageError
from hmd.trace.trace import Samples, Trace
from hmd.trace.trace_reader import Gathered, blocks, damaged, samples_of

OUTLINE_SAMPLES = 1 << 20
"""Most samples of an outline, 40 bytes each."""


class TraceSource(Protocol):
    """Input of the estimator: a trace in memory, or one in its file."""

    @property
    def outline(self) -> Trace:
        """All but the samples, and every n-th sample (n is ``one_of``), in order of time."""
        ...

    @property
    def recorded(self) -> int:
        """Number of samples in all."""
        ...

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, each batch in order of time."""
        ...


class TraceFile:
    """A trace in its file, with an outline in memory."""

    def __init__(self, path: Path, most_samples: int = OUTLINE_SAMPLES) -> None:
        """Read the outline; raises TraceError if the file is no trace, or is damaged."""
        self.path = path
        gathered = Gathered(most_samples)
        try:
            for block in blocks(path):
                gathered.take(block)
        except DamageError as error:
            raise damaged(path, error) from None
        self.outline = gathered.trace(path)
        self.recorded = gathered.samples_seen

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, one block at a time; raises as the constructor does."""
        if self.outline.one_of == 1:
            yield self.outline.samples
            return
        try:
            for block in blocks(self.path):
                if block.tag == "SAMP":
                    yield samples_of(block, len(self.outline.processes))
        except (DamageError, KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, DamageError(str(error))) from None
