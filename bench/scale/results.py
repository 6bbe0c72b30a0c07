"""docs/results/scale.json: what several benches find about large machines, each its own keys.

The rows of ``bench.scale.tick_cost`` and their ratios, the use of the CPU quota by
``bench.scale.quota``, and the mover's figures by ``bench.moves.move_engine``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.scale.plot import cost_ms
from bench.scale.scaled_samples import PATTERNS
from hmd.decide import registry

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs/results"
RESULTS: Final = FOLDER / "scale.json"
QUOTA: Final = FOLDER / "quota.json"

CASE: Final = ("tracked_gib", "processes", "page_kib", "pattern", "policy")
"""The fields of a row that name its case."""

_RATIOS: Final = {"ratio_1tib_over_4gib": (1024, 4), "ratio_4tib_over_1tib": (4096, 1024)}


def merged(
    known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of both, by case; those that were found replace those that were known."""
    rows = {_case(row): dict(row) for row in (*known, *found)}
    places = {name: rank for rank, name in enumerate((*PATTERNS, *_policies()))}
    return sorted(
        rows.values(), key=lambda row: tuple(places.get(row[name], row[name]) for name in CASE)
    )


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the costs of heat and decisions at one size over those at another, where both ran."""
    cost = {
        row["tracked_gib"]: cost_ms(row)
        for row in rows
        if _case(row)[1:] == (1, 4, PATTERNS[0], registry.DEFAULT)
    }
    return {
        name: round(cost[large] / cost[small], 2)
        for name, (large, small) in _RATIOS.items()
        if large in cost and small in cost
    }


def default_cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the cost of the default policy with 4 KiB pages and Zipf's law, by size.

    ``sum_ms`` is of heat and decisions, ``sweep_ms`` what of it is the sweep. Sizes are written as
    ``1024:1``: GiB and processes.
    """
    return {
        f"{row['tracked_gib']}:{row['processes']}": {
            "sum_ms": round(cost_ms(row), 1),
            "sweep_ms": row["sweep_ms"],
            "rss_mib": row["rss_mib"],
        }
        for row in rows
        if _case(row)[2:] == (4, PATTERNS[0], registry.DEFAULT)
    }


def quota_rows(path: Path = QUOTA) -> list[dict[str, Any]]:
    """Return what each case of the quota asked for and used, as shares of one CPU."""
    rows = json.loads(path.read_text())["quota"]
    return [{name: row[name] for name in ("case", "asked", "used")} for row in rows]


def publish(keys: Mapping[str, Any], path: Path = RESULTS) -> dict[str, Any]:
    """Write keys into the file, which keeps its others; returns all of them."""
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    document |= keys
    path.write_text(json.dumps(document, indent=1) + "\n")
    return document


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in CASE)


def _policies() -> list[str]:
    """Return the names of policies, the default first."""
    others = [name for name in registry.names() if name != registry.DEFAULT]
    return [registry.DEFAULT, *others]
