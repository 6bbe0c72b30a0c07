# SPDX-License-Identifier: MIT
"""The pages generated from parsers and schema are up to date."""

import re
import subprocess
import sys
from pathlib import Path

from config_reference import topics

from hmd.base.errors import Exit
from hmd.cli.main import BROKEN_PIPE, COMMANDS, EPILOG, INTERRUPTED
from tests.system.docs.blocks import ROOT

SCRIPT = "packaging/pages/reference_pages.py"


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SCRIPT, str(tmp_path)], cwd=ROOT, check=True, timeout=60)
    made = sorted(tmp_path.iterdir())
    assert [page.name for page in made] == ["commands.md", "configuration.md", "python.md"]
    for page in made:
        committed = ROOT / "docs/reference" / page.name
        assert committed.read_text() == page.read_text(), f"python {SCRIPT}"


def test_reference_pages_list_all_commands_and_settings() -> None:
    commands = (ROOT / "docs/reference/commands.md").read_text()
    for name in COMMANDS:
        assert f"\n### hmd {name}\n" in commands
    settings = (ROOT / "docs/reference/configuration.md").read_text()
    for topic in topics():
        section = settings.split(f"\n## {topic.path or 'At the top'}\n")[1].split("\n## ")[0]
        for setting in topic.settings:
            assert f"\n| `{setting.key}` |" in section


def test_options_with_several_values_are_formatted_like_argparse() -> None:
    commands = (ROOT / "docs/reference/commands.md").read_text()
    assert "| `--traces SLOW FAST` |" in commands
    rows = [line for line in commands.splitlines() if line.startswith("| `")]
    assert rows
    assert not [row for row in rows if "('" in row]


def test_exit_codes_are_in_the_table_and_in_help() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    in_table = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    in_help = {int(code) for code in re.findall(r" {2}(\d+)  \w", EPILOG.split("exit codes:")[1])}
    assert in_table == {*map(int, Exit), INTERRUPTED, BROKEN_PIPE}
    assert in_table == in_help
