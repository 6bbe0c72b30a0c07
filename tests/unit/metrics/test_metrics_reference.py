# SPDX-License-Identifier: MIT
"""Metric names in the reference, dashboard, alerts and documents exist."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bench.monitoring.prometheus import DASHBOARD, panels
from hmd.metrics.definitions import FAMILIES

CHECKOUT = Path(__file__).parents[3]
REFERENCE = CHECKOUT / "docs/reference/metrics.md"
GENERATOR = "packaging/pages/metrics_reference.py"
NAME = re.compile(r"\bhmd_(?!tiering-)[a-z][a-z0-9_]*\b")
SERIES = {name for family in FAMILIES for name in family.series}
CONFIG = [
    "config/grafana/hmd.json",
    "config/prometheus/hmd-alerts.yml",
    "config/prometheus/hmd-alerts-test.yml",
]


def test_metrics_reference_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "metrics.md"
    subprocess.run([sys.executable, GENERATOR, made], cwd=CHECKOUT, check=True)
    assert REFERENCE.read_text() == made.read_text(), f"python {GENERATOR}"


def test_reasons_of_the_page_up_to_date() -> None:
    made = runpy.run_path(str(CHECKOUT / GENERATOR))
    assert made["PAGE_FILE"].read_text() == made["page_reasons"](), f"python {GENERATOR}"


def test_dashboard_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "hmd.json"
    subprocess.run([sys.executable, DASHBOARD.with_name("dashboard.py"), made], check=True)
    assert DASHBOARD.read_text() == made.read_text(), "python config/grafana/dashboard.py"


@pytest.mark.parametrize("file", CONFIG)
def test_dashboard_and_alerts_query_existing_series_only(file: str) -> None:
    text = (CHECKOUT / file).read_text()
    # An annotation may name a histogram without a suffix.
    families = {family.name for family in FAMILIES if family.kind == "histogram"}
    names = set(NAME.findall(text))
    assert names
    assert names - SERIES <= families


def test_documents_name_existing_metrics_only() -> None:
    listed = ["git", "ls-files", "docs/*.md", "*.md", "systemd/*", "config/*"]
    files = subprocess.run(listed, cwd=CHECKOUT, text=True, capture_output=True, check=True)
    wheel = "hmd_tiering"  # the distribution in the name of a wheel
    known = SERIES | {family.name for family in FAMILIES} | {wheel}
    unknown = {}
    for file in files.stdout.split():
        text = (CHECKOUT / file).read_bytes().decode(errors="replace")
        if names := set(NAME.findall(text)) - known:
            unknown[file] = names
    assert not unknown


def test_metric_families_queried_by_dashboard_or_alerts() -> None:
    queried = {name for file in CONFIG[:2] for name in NAME.findall((CHECKOUT / file).read_text())}
    unqueried = [family.name for family in FAMILIES if not queried & set(family.series)]
    # Metrics that distinguish nodes of a tier, or that only a diagnosis needs.
    assert unqueried == [
        "hmd_start_time_seconds",
        "hmd_sampler_running_ratio",
        "hmd_samples_kernel",
        "hmd_node_tier",
        "hmd_node_page_cache_demoting",
        "hmd_pageout_held_processes",
        "hmd_target_samples",
    ]


def test_dashboard_panels_have_description_unit_and_legend() -> None:
    found = panels()
    assert found
    assert len({(panel.row, panel.title) for panel in found}) == len(found)
    for panel in found:
        assert panel.raw["description"].endswith("."), panel.title
        assert panel.raw["fieldConfig"]["defaults"]["unit"], panel.title
        assert all(query.legend for query in panel.queries), panel.title


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    found = panels()
    assert found
    for panel in found:
        position = panel.raw["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel.title
        taken |= cells
