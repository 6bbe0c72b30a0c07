# SPDX-License-Identifier: MIT
"""A pytest plugin: every skipped test is expected by a line here, or reported as unexpected.

With ``--strict-skips``, as ``make test`` runs it, an unexpected skip fails the run.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.tensors.g10_traces import g10_folder
from hmd.linux.mappings import query_from
from hmd.linux.page_calls import PageIs, scan
from tests.fakes import kvm_guest


def is_ordinary_user() -> bool:
    return os.geteuid() != 0


def is_no_checkout() -> bool:
    return not (Path(__file__).parents[1] / ".git").exists()


def has_no_kernel_threads() -> bool:
    comm = Path("/proc/2/comm")
    return not comm.exists() or comm.read_text() != "kthreadd\n"


def has_swap() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def has_no_huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return not setting.exists() or "[never]" in setting.read_text()


def has_no_pagemap_scan() -> bool:
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        try:
            scan(pagemap.fileno(), 0, mmap.PAGESIZE, PageIs.PRESENT)
        except OSError:
            return True
    return False


def has_no_mapping_queries() -> bool:
    with Path("/proc/self/maps").open("rb") as maps:
        try:
            query_from(maps.fileno(), 0, mmap.PAGESIZE)
        except OSError:
            return True
    return False


def allows_perf_for_everyone() -> bool:
    return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1


def has_no_g10_data() -> bool:
    return not g10_folder().is_dir()


def has_no_perfmon_data() -> bool:
    folder = os.environ.get("HMD_PERFMON_DATA")
    return not Path(folder or Path(__file__).parents[2] / "shared/data/perfmon").is_dir()


def has_no_recordings_of_perf() -> bool:
    return not (Path(__file__).resolve().parents[2] / "shared/data/perf").is_dir()


def has_no_usable_perf() -> bool:
    return shutil.which("perf") is None or is_ordinary_user()


def has_no_pytorch() -> bool:
    return find_spec("torch") is None


def has_no_gymnasium() -> bool:
    return find_spec("gymnasium") is None


def has_no_pandas() -> bool:
    return find_spec("pandas") is None


def has_no_ray() -> bool:
    return find_spec("ray") is None


@dataclass(frozen=True, slots=True)
class ExpectedSkip:
    """Tests that may be skipped, by patterns of node id and reason (fnmatch: [ begins a class)."""

    tests: str
    reason: str
    when: Callable[[], bool]


EXPECTED = (
    ExpectedSkip("tests/*", "needs root", is_ordinary_user),
    ExpectedSkip(
        "tests/system/linux/test_huge_page_sources.py::*",
        "this kernel has no PAGEMAP_SCAN",
        has_no_pagemap_scan,
    ),
    # As that of Debian 12. The guest's kernel has them, and its daemon and tests use them.
    ExpectedSkip(
        "tests/unit/linux/test_mapping_queries.py::*",
        "PROCMAP_QUERY needs Linux 6.11",
        has_no_mapping_queries,
    ),
    ExpectedSkip("tests/*/linux/*", "this kernel gave no huge pages", has_no_huge_pages),
    ExpectedSkip(
        "tests/system/*",
        "this host gives no virtual machines*",
        lambda: not kvm_guest.usable(),
    ),
    ExpectedSkip(
        "tests/system/linux/test_move_pages.py::*", "kernel threads*", has_no_kernel_threads
    ),
    ExpectedSkip(
        "tests/system/sample/test_perf_events.py::*", "*paranoid*", allows_perf_for_everyone
    ),
    ExpectedSkip("tests/system/migrate/test_pageout.py::*", "this host has swap*", has_swap),
    ExpectedSkip("tests/system/packaging/test_wheel.py::*", "*no checkout", is_no_checkout),
    ExpectedSkip("tests/system/trace/test_import_from_perf.py::*", "*perf*", has_no_usable_perf),
    ExpectedSkip("tests/unit/tensors/*", "no G10 data", has_no_g10_data),
    ExpectedSkip(
        "tests/unit/sample/test_intel_events.py::*", "no perfmon data", has_no_perfmon_data
    ),
    ExpectedSkip(
        "tests/unit/trace/test_perf_data.py::*", "no recordings of perf", has_no_recordings_of_perf
    ),
    # The extra torch is not in the locked versions: a gigabyte, and packages of CUDA elsewhere.
    *(
        ExpectedSkip(f"tests/unit/tensors/capture/{name}.py", "no PyTorch", has_no_pytorch)
        for name in ("test_training_script", "test_exported_graph", "test_training_programs")
    ),
    # As in `make test-torch`, which has it.
    ExpectedSkip("tests/unit/torch/*.py", "no PyTorch", has_no_pytorch),
    # The extra train needs PyTorch.
    ExpectedSkip("tests/unit/learn/test_environment.py", "no gymnasium", has_no_gymnasium),
    # The extra frames is not in the locked versions: 150 MB, for notebooks alone.
    ExpectedSkip("tests/unit/docs/test_notebook.py::*", "no pandas", has_no_pandas),
    # The extra fleet is not in the locked versions: 200 MB, for clusters alone.
    ExpectedSkip("tests/system/learn/test_ray_cluster.py", "no Ray", has_no_ray),
)


@dataclass(frozen=True, slots=True)
class Skip:
    """A test that was skipped, or a module whose collection was."""

    test: str
    reason: str

    @property
    def is_expected(self) -> bool:
        return any(
            fnmatchcase(self.test, each.tests)
            and fnmatchcase(self.reason, each.reason)
            and each.when()
            for each in EXPECTED
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail where a test is skipped that tests/expected_skips.py does not list",
    )


class SkipRecorder:
    """Collects the skips of a session."""

    def __init__(self) -> None:
        self.skips: list[Skip] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # A test that fails as expected (xfail) is "skipped" too; its longrepr is no triple.
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.skips.append(Skip(report.nodeid, reason))

    @property
    def unexpected(self) -> list[Skip]:
        return [skip for skip in self.skips if not skip.is_expected]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipRecorder(), "skip-recorder")


def _recorder(config: pytest.Config) -> SkipRecorder:
    recorder = config.pluginmanager.get_plugin("skip-recorder")
    assert isinstance(recorder, SkipRecorder)
    return recorder


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    strict = session.config.getoption("--strict-skips")
    if strict and session.exitstatus == pytest.ExitCode.OK and _recorder(session.config).unexpected:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    unexpected = _recorder(config).unexpected
    if unexpected:
        terminalreporter.section("unexpected skips (tests/expected_skips.py lists the expected)")
        for skip in unexpected:
            terminalreporter.line(f"{skip.test}: {skip.reason}")
