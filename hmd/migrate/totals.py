"""Totals of several outcomes, for a migration that takes many plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hmd.migrate.move_status import FAILURES, MoveStatus
from hmd.migrate.outcome import Flow, MoveOutcome
from hmd.units import PAGE_BYTES


@dataclass(slots=True)
class MoveTotals:
    """Pages (of 4 KiB) moved by flow and planned by status, without deferred ones.

    ``resident_pages`` were found in the slices that plans were made of. ``limited`` says that a
    limit ended the migration.
    """

    resident_pages: int = 0
    moved: Counter[Flow] = field(default_factory=Counter)
    pages: Counter[MoveStatus] = field(default_factory=Counter)
    calls: int = 0
    seconds: float = 0.0
    limited: bool = False

    def add(self, outcome: MoveOutcome) -> None:
        """Add the outcome of one plan."""
        self.moved.update(outcome.moved)
        self.pages.update({s: n for s, n in outcome.pages.items() if s is not MoveStatus.DEFERRED})
        self.calls += outcome.calls
        self.seconds += outcome.seconds

    @property
    def moved_pages(self) -> int:
        """Pages that moved, or in a dry run would move."""
        return sum(self.moved.values())

    @property
    def moved_bytes(self) -> int:
        """``moved_pages`` in bytes."""
        return self.moved_pages * PAGE_BYTES

    @property
    def failures(self) -> dict[MoveStatus, int]:
        """Pages that failed to move, by reason."""
        return {status: pages for status, pages in self.pages.items() if status in FAILURES}
