# SPDX-License-Identifier: MIT
"""The Grafana dashboard: writes hmd.json in this folder, or the FILE given as an argument.

Panels are in memory_rows.py and service_rows.py, and are laid out here. The tests run every query
against a real Prometheus (tests/system/daemon/test_prometheus.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory_rows import MOVES, TARGETS, TIERS
from panel import OF_INSTANCE, Panel, Query
from service_rows import ADMIN_REQUESTS, COST, FLEET, OVERVIEW, SAMPLING, STAGES

FILE = Path(__file__).with_name("hmd.json")
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

ROWS = {
    "Overview": OVERVIEW,
    "Tiers": TIERS,
    "Targets": TARGETS,
    "Decisions and moves": MOVES,
    "Stages": STAGES,
    "Sampling": SAMPLING,
    "Cost of hmd": COST,
    "Admin requests": ADMIN_REQUESTS,
    "All machines": FLEET,
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "__inputs": [],
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        ],
        "title": "hmd, heterogeneous memory daemon",
        "uid": "hmd",
        "description": "Tiers, targets, decisions and moves, stages, sampling, cost, all machines.",
        "tags": ["hmd", "memory", "numa"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": _variables()},
        "annotations": {"list": _annotations()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
        },
        _of_labels("instance", "Machine", "label_values(hmd_build_info, instance)"),
        _of_labels(
            "target", "Target", f"label_values(hmd_target_processes{{{OF_INSTANCE}}}, target)"
        ),
    ]


def _of_labels(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _annotations() -> list[dict[str, Any]]:
    return [
        {
            "name": "Reloads",
            "datasource": SOURCE,
            "enable": True,
            "iconColor": "purple",
            "expr": Query(
                "changes(hmd_config_last_reload_success_timestamp_seconds{}[R]) > 0", ""
            ).text,
            "titleFormat": "{{instance}}: configuration reloaded",
        }
    ]


def _panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, laid out from left to right and then below."""
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        left = 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + panel.height
            number += 1
            yield _panel(panel, number, left, top)
            left += panel.width
        top += panels[-1].height


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": [
            {
                "refId": chr(ord("A") + row),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.text,
                "legendFormat": query.legend,
                "range": panel.kind == "timeseries",
                "instant": panel.kind != "timeseries",
            }
            for row, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.steps]
    made: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.names:
        states = {
            value: {"text": text, "color": colour, "index": row}
            for row, (value, text, colour) in enumerate(panel.names)
        }
        made["mappings"] = [{"type": "value", "options": states}]
    if panel.most is not None or panel.stack:
        made["min"] = 0
    if panel.most is not None:
        made["max"] = panel.most
    if panel.kind == "timeseries":
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stack else 10,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    return made


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    if not panel.below:
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": panel.below},
            "properties": [{"id": "custom.transform", "value": "negative-Y"}],
        }
    ]


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "bargauge":
        return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic"}
    return {
        "reduceOptions": reduce,
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "name" if panel.by_name else "auto",
        "orientation": "auto",
    }


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_text(json.dumps(dashboard(), indent=2) + "\n")
