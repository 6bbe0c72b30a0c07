"""What is written of metrics is what there is: in the reference, dashboard, alerts, documents."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.monitoring.grafana import DASHBOARD, panels
from hmd.migrate.move_status import MoveStatus
from hmd.observe.families import FAMILIES
from hmd.observe.metrics_reference import FILE, MARK, REASONS, reference

CHECKOUT = Path(__file__).parents[3]
NAME = re.compile(r"\bhmd_(?!tiering-)[a-z][a-z0-9_]*\b")
SERIES = {name for family in FAMILIES for name in family.series}
CONFIG = [
    "config/grafana/hmd.json",
    "config/prometheus/hmd-alerts.yml",
    "config/prometheus/hmd-alerts-test.yml",
]


def test_the_reference_is_up_to_date() -> None:
    _, made = FILE.read_text().split(MARK)
    assert made == "\n" + reference(), "python -m hmd.observe.metrics_reference"


def test_the_dashboard_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "hmd.json"
    subprocess.run([sys.executable, DASHBOARD.with_name("dashboard.py"), made], check=True)
    assert DASHBOARD.read_text() == made.read_text(), "python config/grafana/dashboard.py"


@pytest.mark.parametrize("file", CONFIG)
def test_all_that_is_asked_for_exists(file: str) -> None:
    text = (CHECKOUT / file).read_text()
    # An annotation may name a histogram without a suffix.
    families = {family.name for family in FAMILIES if family.kind == "histogram"}
    names = set(NAME.findall(text))
    assert names
    assert names - SERIES <= families


def test_documents_name_only_what_exists() -> None:
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


def test_every_family_is_asked_for_by_the_dashboard_or_the_alerts() -> None:
    asked = {name for file in CONFIG[:2] for name in NAME.findall((CHECKOUT / file).read_text())}
    unasked = [family.name for family in FAMILIES if not asked & set(family.series)]
    # Metrics that distinguish nodes of a tier, or that only a diagnosis needs.
    assert unasked == ["hmd_start_time_seconds", "hmd_node_tier", "hmd_target_samples"]


def test_every_reason_is_explained() -> None:
    assert set(REASONS) == set(MoveStatus) - {MoveStatus.PENDING, MoveStatus.MOVED}


def test_every_panel_says_what_it_shows() -> None:
    found = panels()
    assert found
    assert len({(panel.row, panel.title) for panel in found}) == len(found)
    for panel in found:
        assert panel.raw["description"].endswith("."), panel.title
        assert panel.raw["fieldConfig"]["defaults"]["unit"], panel.title
        assert all(query.legend for query in panel.queries), panel.title


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    found = panels()
    assert found
    for panel in found:
        place = panel.raw["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel.title
        taken |= cells
