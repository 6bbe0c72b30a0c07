# SPDX-License-Identifier: MIT
"""What policies make of a synthetic program's hot set."""

from __future__ import annotations

from bench.synthetic.synthetic_run import SyntheticRun


def hot_fast(run: SyntheticRun) -> float:
    """Return the share of the hot pages that are on the fast node."""
    hot = run.weights > 2 * run.weights.min()
    return float((run.node[hot] == 0).mean())
