"""Sums per process or per target, as columns with one row each.

Ten thousand processes cost one pass over each column per tick, not ten thousand objects.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

RECENT_DECAY = 0.8
"""Factor per tick on recent accesses: their half-life is 3 ticks."""


@dataclass(slots=True)
class RowSums:
    """Columns of ``n`` rows.

    ``accesses`` and ``recent`` are sampled accesses by tier, shape ``(n, tiers + 1)``, the last
    column for pages on no known node; ``recent`` decays. The other columns have shape ``(n,)``.
    """

    accesses: npt.NDArray[np.float64]
    recent: npt.NDArray[np.float64]
    samples: npt.NDArray[np.int64]
    promoted_bytes: npt.NDArray[np.int64]
    demoted_bytes: npt.NDArray[np.int64]
    failed_pages: npt.NDArray[np.int64]

    @classmethod
    def zeros(cls, rows: int, tiers: int) -> Self:
        """Return sums that are all zero."""
        whole = [np.zeros(rows, np.int64) for _ in range(4)]
        return cls(np.zeros((rows, tiers + 1)), np.zeros((rows, tiers + 1)), *whole)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.samples)

    def taken_over(self, rows: npt.NDArray[np.intp]) -> Self:
        """Return sums whose row i is ``rows[i]`` of these, or zero where that is -1."""
        made = type(self).zeros(len(rows), self.accesses.shape[1] - 1)
        known = np.flatnonzero(rows >= 0)
        for field in fields(self):
            getattr(made, field.name)[known] = getattr(self, field.name)[rows[known]]
        return made

    def decay(self) -> None:
        """Decay the recent accesses by one tick."""
        self.recent *= RECENT_DECAY

    def add_accesses(
        self,
        row: npt.NDArray[np.integer],
        tier: npt.NDArray[np.integer],
        period: npt.NDArray[np.integer],
    ) -> None:
        """Count samples, each for ``period`` accesses; columns have shape ``(samples,)``."""
        rows, width = self.accesses.shape
        cell = row.astype(np.int64) * width + tier
        counted = np.bincount(cell, period, rows * width).reshape(rows, width)
        self.accesses += counted
        self.recent += counted
        self.samples += np.bincount(row, minlength=rows)

    def add_moves(
        self,
        row: npt.NDArray[np.integer],
        promoted_bytes: npt.NDArray[np.int64],
        demoted_bytes: npt.NDArray[np.int64],
        failed_pages: npt.NDArray[np.int64],
    ) -> None:
        """Count moves; columns have shape ``(moves,)``."""
        np.add.at(self.promoted_bytes, row, promoted_bytes)
        np.add.at(self.demoted_bytes, row, demoted_bytes)
        np.add.at(self.failed_pages, row, failed_pages)

    def fast_shares(self) -> list[float | None]:
        """Return each row's share of recent accesses to known nodes that tier 0 served.

        None for a row without such accesses.
        """
        known = self.recent[:, :-1].sum(axis=1)
        counted = known > 1e-6
        shares = np.divide(self.recent[:, 0], known, out=np.zeros_like(known), where=counted)
        pairs = zip(shares.tolist(), counted.tolist(), strict=True)
        return [share if some else None for share, some in pairs]
