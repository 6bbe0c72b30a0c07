# SPDX-License-Identifier: MIT
"""The error that sampling brings into results from an imported recording.

It follows from how many samples a page has. ``sampling_error.yaml`` has what was measured on
recorded programs of which all misses are known (bench/suite/import_error.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import yaml

from hmd.base.units import PAGE_BYTES
from hmd.trace.trace import Trace

TABLE: Final = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, slots=True)
class SamplingError:
    """Means over programs, as shares: pages that are found, errors of runtimes."""

    period: int
    samples_per_page: float
    recall: float
    estimate_error: float
    simulate_error: float

    def describe(self, runtime: str = "estimate") -> str:
        """Return it in one line; ``runtime`` is that of ``hmd estimate`` or ``simulate``."""
        error = self.estimate_error if runtime == "estimate" else self.simulate_error
        return (
            f"sampled 1 in {self.period:,}, {self.samples_per_page:.1f} samples per page: "
            f"hottest-quarter recall about {self.recall:.0%}, runtime error ({runtime}) about "
            f"{error:.0%}".replace("%", " %")
        )


def is_imported(trace: Trace) -> bool:
    """Return whether a trace is an import, not a recording of hmd."""
    return bool(trace.about.get("source"))


def sampling_error(trace: Trace) -> SamplingError:
    """Return the error to expect of a trace, between the densities that were measured."""
    samples = trace.samples
    key = samples.address // np.uint64(PAGE_BYTES)
    key |= samples.process.astype(np.uint64) << np.uint64(48)
    density = len(samples) * trace.stride / max(1, len(np.unique(key)))
    columns = _table()
    at = np.log(max(density, 1e-3))
    recall, estimate, simulate = (
        float(np.interp(at, columns["log_density"], columns[name]))
        for name in ("recall", "estimate_error", "simulate_error")
    )
    return SamplingError(int(trace.about.get("period") or 1), density, recall, estimate, simulate)


@cache
def _table() -> dict[str, list[float]]:
    rows = yaml.safe_load(TABLE.read_text())
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    return columns | {"log_density": np.log(columns["samples_per_page"]).tolist()}
