"""The Grafana dashboard as a list of panels whose queries a bare Prometheus can answer.

Takes config/grafana/hmd.json, returns panels; Grafana's variables are replaced as by Grafana with
all machines and all targets selected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "config/grafana/hmd.json"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel: its row, title, kind and queries.

    ``raw`` is the panel in Grafana's JSON, with its position on a grid of 24 columns.
    """

    row: str
    title: str
    kind: str
    queries: tuple[PanelQuery, ...]
    raw: dict[str, Any]


def panels(file: Path = DASHBOARD, rate_interval: str = "1m") -> list[DashboardPanel]:
    """Return the panels of a dashboard in order."""
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
    """Return a query with Grafana's variables replaced: everything is selected."""
    for name, value in (
        ("$__rate_interval", rate_interval),
        ("$instance", ".*"),
        ("$target", ".*"),
    ):
        expr = expr.replace(name, value)
    return expr
