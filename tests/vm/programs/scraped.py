# SPDX-License-Identifier: MIT
"""What a real Prometheus in the guest, scraping the daemon, answers."""

from __future__ import annotations

import math
import time
from typing import Any

from bench.monitoring.prometheus import Prometheus, panels

PATIENCE_S = 400
INTERVAL_S = 15
RATE_INTERVAL = "20m"
"""Longer than all of this takes, so that rates see every scrape."""

DONE = (
    # Rates are of what changed between scrapes.
    f"count_over_time(hmd_cpu_seconds_total[{RATE_INTERVAL}]) >= 3",
    'sum(hmd_moved_bytes_total{from_tier="1", to_tier="0"}) > 12 * 2^20',
    'hmd_target_fast_access_ratio{target="gather"} > 0.75',
    "hmd_realised_saving_seconds_total > 0",
)
"""What Prometheus knows when the program's pages have been moved and used since."""


def wait_for(prometheus: Prometheus, expr: str) -> None:
    """Wait until a query has an answer."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not prometheus.ask(expr):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited without result for {expr}")
        time.sleep(2)


def checked(prometheus: Prometheus, since_s: float) -> dict[str, Any]:
    """Return all that is checked; ``since_s`` is when pages began to move."""
    return {
        "answers": answers(prometheus),
        "health": health(prometheus),
        "stages": {
            f"{series.labels['stage']} {way}": series.last
            for way in ("in", "out")
            for series in prometheus.ask(f"hmd_stage_{way}_total")
        },
        "up": [
            value
            for series in prometheus.ask_range("up", since_s, time.time(), INTERVAL_S)
            for _, value in series.points
        ],
    }


def answers(prometheus: Prometheus) -> dict[str, list[float | None]]:
    """Return the last values of every query of the dashboard, by panel; None for no number."""
    found = {}
    for panel in panels(rate_interval=RATE_INTERVAL):
        for query in panel.queries:
            values = [series.last for series in prometheus.ask(query.expr)]
            name = f"{panel.row}: {panel.title}: {query.legend}"
            found[name] = [value if math.isfinite(value) else None for value in values]
    return found


def health(prometheus: Prometheus) -> dict[str, str]:
    """Return the health of each alert rule, once all have been evaluated."""
    while True:
        groups = prometheus.get("rules")["groups"]
        found = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        if "unknown" not in found.values():
            return found
        time.sleep(2)
