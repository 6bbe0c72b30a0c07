"""The Grafana dashboard as a list of panels whose queries a bare Prometheus can answer.

Takes config/grafana/hmd.json, gives panels; Grafana's variables are put in as Grafana would, with
all machines and all targets chosen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "config/grafana/hmd.json"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, and how its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel: the row it is in, its place on a grid of 24 columns, and its queries.

    ``raw`` is the panel as Grafana has it.
    """

    row: str
    title: str
    kind: str
    queries: tuple[PanelQuery, ...]
    raw: dict[str, Any]


def panels(file: Path = DASHBOARD, rate_interval: str = "1m") -> list[DashboardPanel]:
    """Return the panels of a dashboard, in its order."""
    row, found = "", []
    for raw in json.loads(file.read_text())["panels"]:
        if raw["type"] == "row":
            row = raw["title"]
            continue
        queries = tuple(
            PanelQuery(chosen(target["expr"], rate_interval), target["legendFormat"])
            for target in raw["targets"]
        )
        found.append(DashboardPanel(row, raw["title"], raw["type"], queries, raw))
    return found


def chosen(expr: str, rate_interval: str) -> str:
    """Return a query with Grafana's variables put in: everything is chosen."""
    for name, value in (
        ("$__rate_interval", rate_interval),
        ("$instance", ".*"),
        ("$target", ".*"),
    ):
        expr = expr.replace(name, value)
    return expr
