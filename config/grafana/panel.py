# SPDX-License-Identifier: MIT
"""What a panel of the dashboard is: title, description, unit, queries with their legends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OF_INSTANCE = 'instance=~"$instance"'
OF_TARGET = 'instance=~"$instance", target=~"$target"'


@dataclass(frozen=True, slots=True)
class Query:
    """What to ask, and how to call each series of the answer.

    In ``expr``, ``{}`` selects the chosen instances, ``{T}`` also the chosen targets; with more
    labels ``{, tier="0"}`` and ``{T, tier="0"}``. ``[R]`` is the interval that rates need.
    """

    expr: str
    legend: str

    @property
    def text(self) -> str:
        """The query as Grafana has it."""
        made = self.expr.replace("{T", "{" + OF_TARGET).replace("[R]", "[$__rate_interval]")
        return made.replace("{}", "{" + OF_INSTANCE + "}").replace("{,", "{" + OF_INSTANCE + ",")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel; ``steps`` are thresholds (value, colour), ``names`` what states are called.

    ``below`` matches the legends of series that are drawn downward.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stack: bool = False
    most: float | None = None
    steps: tuple[tuple[float, str], ...] = ()
    names: tuple[tuple[str, str, str], ...] = ()
    below: str = ""
    by_name: bool = False


def stat(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """Return a panel of one figure."""
    legend = more.pop("legend", "{{instance}}")
    return Panel(title, description, unit, (Query(expr, legend),), "stat", 3, 4, **more)
