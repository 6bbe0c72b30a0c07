# SPDX-License-Identifier: MIT
"""The manual pages: completeness, and validity by the checkers of the formatters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from config_reference import topics

from hmd.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]


def rendered(page: Path) -> str:
    """Return a page as plain text; fails if the formatter prints a warning."""
    done = subprocess.run(
        ["man", "--warnings", "--encoding=utf-8", "--local-file", str(page)],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": "/usr/bin:/bin",
            "MANWIDTH": "200",
            "MAN_KEEP_FORMATTING": "",
            "LC_ALL": "C.UTF-8",
        },
        check=True,
    )
    assert done.stderr == ""
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)


def test_man_pages_cover_all_commands_and_pass_mandoc(share: Path) -> None:
    pages = sorted((share / "man").glob("man?/*"))
    assert {page.name for page in pages} == {
        *("hmd.1", "hmd.8", "hmd.yaml.5"),
        *(f"hmd-{family}.1" for family in COMMANDS),
    }
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", *map(str, pages)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("family", COMMANDS)
def test_man_page_lists_every_option_of_help(family: str, share: Path) -> None:
    page = rendered(share / f"man/man1/hmd-{family}.1")
    helped = subprocess.run(
        [sys.executable, "-m", "hmd", family, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    ).stdout
    options = set(re.findall(r"^  (?:-\w[^,]*, )?(--[a-z][a-z-]+)", helped, re.MULTILINE))
    assert options - {"--help"} <= set(re.findall(r"--[a-z][a-z-]+", page))


def test_man_page_commands_have_plain_hyphens_and_quotes(share: Path) -> None:
    page = rendered(share / "man/man1/hmd-record.1")
    assert "hmd record -o db.hmdt --pid 4711 --seconds 30 " in page
    assert "'hmd estimate' predicts" in page


def test_configuration_page_lists_every_setting(share: Path) -> None:
    page = rendered(share / "man/man5/hmd.yaml.5")
    for topic in topics():
        section = page.split(f"SECTION {topic.path.upper()}\n")[-1] if topic.path else page
        for setting in topic.settings:
            assert re.search(rf"^ +{re.escape(setting.key)}:( |$)", section, re.MULTILINE)


def test_daemon_page_lists_options_and_samplers(share: Path) -> None:
    page = rendered(share / "man/man8/hmd.8")
    assert "--dry-run" in page
    for drop_in in (ROOT / "systemd/samplers").glob("*.conf"):
        assert re.search(rf"^ +{drop_in.stem}\b", page, re.MULTILINE)


def test_man_pages_named_by_the_service_exist(share: Path) -> None:
    service = (ROOT / "systemd/hmd.service").read_text()
    named = re.findall(r"man:(\S+)\((\d)\)", service)
    assert named
    for name, section in named:
        assert (share / f"man/man{section}/{name}.{section}").exists()


def test_man_pages_with_same_time_are_reproducible(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    generator = ROOT / "packaging/pages/generate.py"
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, timeout=60)
    dated = '"1970-01-02"'
    pages = list((share / "man").glob("man?/*"))
    assert pages
    for page in pages:
        again = (tmp_path / page.relative_to(share)).read_text()
        assert dated in again.splitlines()[0]
        assert again.splitlines()[1:] == page.read_text().splitlines()[1:]
