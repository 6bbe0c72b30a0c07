"""Limits, names and paths in the documents, compared with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hmd.control.admin_commands import MAX_OWN_PINS, MAX_PINS
from hmd.control.request import MAX_REQUEST_BYTES
from hmd.control.status_socket import CLIENT_TIME_S, MAX_CLIENTS, MAX_OWN_CLIENTS
from hmd.dashboard.heat_grids import MOMENTS
from hmd.dashboard.history import POINTS
from hmd.decide import registry
from hmd.observe.limits import MAX_TARGETS
from hmd.observe.savings import RETURN_TICKS, ROWS_PER_TICK, WINDOW_TICKS
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.damon_cycle import REGIONS
from hmd.sample.damon_sampler import LADDER
from hmd.serve.bounded_http import MAX_CONNECTIONS
from hmd.trace.blocks import MAX_ROWS

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMITS = {
    "reference/metrics": (
        f"At most {ROWS_PER_TICK} moves per tick",
        f"in the {WINDOW_TICKS} ticks after the move",
        f"moves back within {RETURN_TICKS} ticks",
        f"After the {MAX_TARGETS}th target",
    ),
    "how-to/control": (
        f"A user may hold {MAX_OWN_PINS} pins; all users together {MAX_PINS}.",
        f"A request has at most {MAX_REQUEST_BYTES} bytes and arrives within {CLIENT_TIME_S:g} s",
        f"serves {MAX_CLIENTS} clients at once, {MAX_OWN_CLIENTS} of one user",
    ),
    "how-to/dashboard": (
        f"{POINTS} points",
        f"{MOMENTS} heat snapshots",
        f"{MAX_CONNECTIONS} connections",
    ),
    "reference/samplers": (
        f"at most {REGIONS} regions",
        f"{LADDER[0]} to {LADDER[-1]:,} ms",
    ),
    "reference/trace-format": (f"at most 2^{MAX_ROWS.bit_length() - 1} |",),
}
"""Statements with their numbers, by page."""

UNTRUE = {
    r"learned state": "the daemon keeps none",
    r"takes the nodes as they are when it starts": "a running daemon follows hot-plug",
}
"""What documents, messages and units once said, and why it is false."""

PATHS = re.compile(r"`((?:hmd|tests|bench|packaging|config|systemd|setup)/[\w./{}*-]+)`")


def words(path: Path) -> str:
    return " ".join(path.read_text().split())


@pytest.mark.parametrize("page", LIMITS)
def test_page_limits_equal_code_constants(page: str) -> None:
    text = words(ROOT / f"docs/{page}.md")
    assert not [statement for statement in LIMITS[page] if statement not in text]


def test_documents_and_sources_known_false_statements_absent() -> None:
    sources = [*(ROOT / "hmd").rglob("*.py"), *(ROOT / "systemd").rglob("*.*")]
    for path in filter(Path.is_file, [*DOCUMENTS, *sources, *(ROOT / "packaging").rglob("*.yaml")]):
        found = [false for false in UNTRUE if re.search(false, words(path))]
        assert not found, f"{path}: {found}"


def test_documents_named_path_exists() -> None:
    named = [(page, path) for page in DOCUMENTS for path in PATHS.findall(page.read_text())]
    assert named
    assert not [f"{page}: {path}" for page, path in named if not list(ROOT.glob(path))]


def test_samplers_page_lists_samplers_in_auto_order() -> None:
    page = (ROOT / "docs/reference/samplers.md").read_text().split("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.M)) == tuple(CAPABILITIES)


def test_policies_page_lists_every_policy() -> None:
    page = (ROOT / "docs/reference/policies.md").read_text()
    table = re.findall(r"^\| `([\w-]+)`(?: \(default\))? \| \w+ \w+", page, re.M)
    assert set(registry.names()) <= set(table)


def test_service_page_lists_the_capabilities_of_the_unit() -> None:
    unit = (ROOT / "systemd/hmd.service").read_text()
    (granted,) = re.findall(r"^AmbientCapabilities=(.*)$", unit, re.M)
    page = (ROOT / "docs/how-to/service.md").read_text()
    assert set(granted.split()) == set(re.findall(r"^\| (CAP_\w+) \|", page, re.M))
    (watchdog,) = re.findall(r"^(WatchdogSec=\d+)$", unit, re.M)
    assert f"`{watchdog}`" in page
    (final,) = re.findall(r"^(RestartPreventExitStatus=.*)$", unit, re.M)
    assert f"`{final}`" in page


def test_service_page_lists_every_drop_in_of_a_sampler() -> None:
    page = (ROOT / "docs/how-to/service.md").read_text()
    drop_ins = {path.stem for path in (ROOT / "systemd/samplers").glob("*.conf")}
    assert drop_ins
    assert drop_ins == set(re.findall(r"^\| (\w+) \| CAP_", page, re.M))


def test_control_page_states_when_the_alerts_fire() -> None:
    rules = yaml.safe_load((ROOT / "config/prometheus/hmd-alerts.yml").read_text())
    after = {rule["alert"]: rule["for"] for group in rules["groups"] for rule in group["rules"]}
    page = words(ROOT / "docs/how-to/control.md")
    assert f"after {after['HmdPaused'].removesuffix('h')} hours of pause" in page
    assert f"drained for {after['HmdNodeDrained'].removesuffix('h')} hours" in page


def test_readme_fits_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 66
