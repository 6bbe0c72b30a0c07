# SPDX-License-Identifier: MIT
"""Limits, names and paths in the documents, compared with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from config_reference import topics

from hmd.base.paths import CONFIG_FILE
from hmd.base.units import GIB, HUGE_PAGE_BYTES, MIB
from hmd.config.load import RUNTIME_DROP_INS
from hmd.config.schema import Config
from hmd.control.commands import MAX_OWN_PINS, MAX_PINS
from hmd.control.requests import MAX_REQUEST_BYTES
from hmd.control.status_socket import CLIENT_TIME_S, MAX_CLIENTS, MAX_OWN_CLIENTS
from hmd.dashboard.poller import MOMENTS, POINTS
from hmd.heat.settings import HeatSettings
from hmd.metrics.savings import RETURN_TICKS, ROWS_PER_TICK, WINDOW_TICKS
from hmd.metrics.status import MAX_TARGETS
from hmd.policy import registry
from hmd.sample.damon_sampler import MAX_REGIONS, PERIODS
from hmd.sample.sampler import CAPABILITIES
from hmd.serve.bounded_http import MAX_CONNECTIONS
from hmd.tensors.planners import PLANNERS
from hmd.tick.tick import POLICY_ROWS
from hmd.trace.blocks import MAX_ROWS

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMITS = {
    "docs/reference/metrics.md": (
        f"At most {ROWS_PER_TICK} moves per tick",
        f"in the {WINDOW_TICKS} ticks after the move",
        f"moves back within {RETURN_TICKS} ticks",
        f"After the {MAX_TARGETS}th target",
    ),
    "docs/how-to/control.md": (
        f"A user may hold {MAX_OWN_PINS} pins; all users together {MAX_PINS}.",
        f"A request has at most {MAX_REQUEST_BYTES} bytes and arrives within {CLIENT_TIME_S:g} s",
        f"serves {MAX_CLIENTS} clients at once, {MAX_OWN_CLIENTS} of one user",
    ),
    "docs/how-to/dashboard.md": (
        f"{POINTS} points",
        f"{MOMENTS} heat snapshots",
        f"{MAX_CONNECTIONS} connections",
    ),
    "docs/reference/samplers.md": (
        f"at most {MAX_REGIONS} regions",
        f"{PERIODS[0]} to {PERIODS[-1]:,} ms",
    ),
    "docs/reference/trace-format.md": (f"at most 2^{MAX_ROWS.bit_length() - 1} |",),
    "ARCHITECTURE.md": (
        f"of more than 2^{POLICY_ROWS.bit_length()} rows, those 2^{POLICY_ROWS.bit_length() - 1}",
    ),
    "docs/explanation/faq.md": (
        f"up to `heat.detail` ({Config().heat.detail // MIB} MiB, which are",
        f"which are {HeatSettings().max_page_slots * HUGE_PAGE_BYTES // GIB} GiB of pages)",
    ),
}
"""Statements with their numbers, by page."""

UNTRUE = {
    r"learned state": "the daemon keeps none",
    r"takes the nodes as they are when it starts": "a running daemon follows hot-plug",
    r"/run/hmd/hmd\.d": "drop-ins of batch systems are in /run/hmd.d, which root alone writes",
}
"""What documents, messages and units once said, and why it is false."""

PATHS = re.compile(r"`((?:hmd|tests|bench|packaging|config|systemd|setup)/[\w./{}*-]+)`")


def words(path: Path) -> str:
    return " ".join(path.read_text().split())


@pytest.mark.parametrize("page", LIMITS)
def test_page_limits_equal_code_constants(page: str) -> None:
    text = words(ROOT / page)
    assert not [statement for statement in LIMITS[page] if statement not in text]


def test_documents_and_sources_known_false_statements_absent() -> None:
    sources = [*(ROOT / "hmd").rglob("*.py"), *(ROOT / "systemd").rglob("*.*")]
    for path in filter(Path.is_file, [*DOCUMENTS, *sources, *(ROOT / "packaging").rglob("*.yaml")]):
        found = [false for false in UNTRUE if re.search(false, words(path))]
        assert not found, f"{path}: {found}"


def test_documents_named_path_exists() -> None:
    present = [page for page in DOCUMENTS if page.parent.name != "lab"]  # dated notes
    named = [(page, path) for page in present for path in PATHS.findall(page.read_text())]
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


def test_configuration_page_names_the_folders_of_drop_ins() -> None:
    page = words(ROOT / "docs/reference/configuration.md")
    assert f"Into `{CONFIG_FILE}`, the files `*.yaml` in `{RUNTIME_DROP_INS}`" in page
    assert f"`*.yaml` in `{CONFIG_FILE.with_suffix('.d')}`" in page


def test_configuration_page_figures_without_exponents() -> None:
    limits = [setting.limits for topic in topics() for setting in topic.settings]
    assert any("GiB" in each for each in limits)
    assert not [each for each in limits if re.search(r"\de[+-]?\d", each)]
    assert "e+" not in (ROOT / "docs/reference/configuration.md").read_text()


def test_tensors_page_describes_every_planner_and_where_it_plans() -> None:
    page = (ROOT / "docs/explanation/tensors.md").read_text()
    where = {None: "all", True: "in place", False: "not in place"}
    described = dict(re.findall(r"^\| `([\w-]+)` \| (all|in place|not in place) \|", page, re.M))
    assert described == {name: where[entry.in_place] for name, entry in PLANNERS.items()}


def test_readme_fits_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 66
