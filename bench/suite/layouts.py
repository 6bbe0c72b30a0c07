# SPDX-License-Identifier: MIT
"""The layouts on which an estimator is evaluated, more than sixty per program.

Layouts by heat from either end, by address from either end, interleaved and random, each with 10 to
90 % of the pages fast; and single mappings, as the only fast and as the only slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.replay import Layout, layout_of

PARTS = tuple(range(10, 100, 10))
_GAP_BYTES = 1 << 20  # larger gaps separate mappings
_MAPPINGS = 4
_SMALLEST = 0.02


def mixed_layouts(
    address: npt.NDArray[np.uint64],
    heat: npt.NDArray[np.float64],
    *,
    seed: int = 7,
    parts: Sequence[int] = PARTS,
) -> dict[str, Layout]:
    """Return layouts by name; ``address``, ``heat`` and layouts have shape ``(pages,)``."""
    rng, pages = np.random.default_rng(seed), len(address)
    hottest = np.lexsort((rng.permutation(pages), -heat))
    orders = {
        "hot": hottest,
        "cold": hottest[::-1],
        "random": rng.permutation(pages),
        "low": np.arange(pages),
        "high": np.arange(pages)[::-1],
    }
    found: dict[str, Layout] = {}
    turn = np.arange(pages + 1)
    for part in parts:
        for name, order in orders.items():
            found[f"{name}-{part}"] = layout_of(pages, order[: round(pages * part / 100)])
        found[f"interleaved-{part}"] = (turn[1:] * part // 100) > (turn[:-1] * part // 100)
    for number, mapping in enumerate(_mappings(address, heat)):
        alone = layout_of(pages, mapping)
        found[f"mapping-{number}"], found[f"not-mapping-{number}"] = alone, ~alone
    return found


def _mappings(
    address: npt.NDArray[np.uint64], heat: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.int64]]:
    """Return the pages of the hottest mappings; with few mappings, quarters of all pages."""
    pages = np.arange(len(address))
    gaps = np.flatnonzero(np.diff(address) > np.uint64(_GAP_BYTES)) + 1
    large = [each for each in np.split(pages, gaps) if len(each) > _SMALLEST * len(pages)]
    if len(large) < 3:
        large = np.array_split(pages, _MAPPINGS)
    return sorted(large, key=lambda each: -float(heat[each].sum()))[:_MAPPINGS]
