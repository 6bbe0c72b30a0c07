# SPDX-License-Identifier: MIT
"""Unexpected skips: reported, and with --strict-skips a failure of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.expected_skips import EXPECTED, ExpectedSkip, Skip

ROOT = Path(__file__).parents[2]
MODULE = """
import pytest

@pytest.mark.skip(reason="no reason that is listed")
def test_that_is_skipped() -> None: ...

def test_that_passes() -> None: ...
"""
SKIPPED_MODULE = """
import pytest

pytest.importorskip("a_module_that_is_not_there", reason="no such module")
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_one.py").write_text(MODULE)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.expected_skips"]
    return subprocess.run(
        [sys.executable, *words, *options, f"--rootdir={folder}", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict-skips",), 1)])
def test_strict_skips_with_an_unexpected_skip_fails_the_run(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    done = run(tmp_path, *options)
    assert done.returncode == code, done.stderr
    assert "test_that_is_skipped: no reason that is listed" in done.stdout


def test_strict_skips_with_two_workers_fails_the_run_for_tests_and_modules(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(SKIPPED_MODULE)
    done = run(tmp_path, "--strict-skips", "-n", "2")
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("test_that_is_skipped: no reason that is listed") == 1
    assert done.stdout.count("test_two.py: no such module") == 1


def test_strict_skips_without_skips_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "--strict-skips", "-k", "passes")
    assert done.returncode == 0, done.stderr
    assert "unexpected" not in done.stdout


def test_skip_is_expected_where_test_reason_and_host_match(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"lacks it": True}
    expected = ExpectedSkip("tests/a.py::*one*", "no such*", lambda: host["lacks it"])
    monkeypatch.setattr("tests.expected_skips.EXPECTED", (expected,))
    skip = Skip("tests/a.py::test_x[one]", "no such device")
    assert skip.is_expected
    assert not Skip("tests/a.py::test_x[two]", "no such device").is_expected
    assert not Skip("tests/a.py::test_x[one]", "too slow").is_expected
    host["lacks it"] = False
    assert not skip.is_expected


def test_expected_skips_name_files_that_exist() -> None:
    for each in EXPECTED:
        path = each.tests.split("::")[0]
        assert list(ROOT.glob(path)), path
