# SPDX-License-Identifier: MIT
"""The notebook interface: its page's code runs, and its figures are those of the commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import hmd
from hmd.base.errors import MissingError, UsageError
from hmd.base.units import PAGE_BYTES
from hmd.cli.main import main
from hmd.notebook import Picture
from hmd.sample.access_batch import COLUMNS
from hmd.trace.writer import write_trace
from tests.unit.cli.test_estimate_command import FAST, SLOW
from tests.unit.cli.test_tune_command import recorded

PAGE = Path(__file__).parents[3] / "docs/how-to/notebook.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_trace(tmp_path / "slow.hmdt", SLOW)
    write_trace(tmp_path / "fast.hmdt", FAST)
    recorded(tmp_path / "dict.misses", 40)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_of_the_page_runs(
    folder: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if "to_pandas" in BLOCKS[number] and find_spec("pandas") is None:
        pytest.skip("no pandas")
    exec(compile(BLOCKS[number], str(PAGE), "exec"), {})
    assert ("print" in BLOCKS[number]) == bool(capsys.readouterr().out)


def test_import_loads_nothing_and_lists_the_names() -> None:
    script = (
        "import sys, hmd; print({'numpy', 'pandas', 'hmd.notebook'} & {*sys.modules}, dir(hmd))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("set()")
    assert "open_trace" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'opentrace'"):
        _ = hmd.opentrace


def test_columns_working_set_and_needed_memory(folder: Path) -> None:
    slow = hmd.open_trace("slow.hmdt")
    assert len(slow.samples.address) == len(SLOW.samples)
    pages = len(np.unique(SLOW.samples.address // PAGE_BYTES))
    assert len(slow.pages.address) == pages
    assert slow.needed_bytes(0) == 0
    assert slow.needed_bytes(1) == pages * PAGE_BYTES
    assert 0 < slow.needed_bytes(0.5) < slow.needed_bytes(0.9) < pages * PAGE_BYTES
    whole = slow.working_set(window_s=slow.trace.runtime_ns / 1e9)
    assert whole.bytes.tolist() == [pages * PAGE_BYTES]
    parts = slow.working_set()
    assert len(parts.bytes) == 100
    assert parts.bytes.max() < pages * PAGE_BYTES
    assert parts.percentile(100) == parts.bytes.max()
    with pytest.raises(UsageError, match="from 0 to 1"):
        slow.needed_bytes(90)


def test_figures_are_those_of_the_commands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> dict[str, object]:
        assert main([*words, "--json"]) == 0
        return {**json.loads(capsys.readouterr().out), "made_by": None}

    slow = hmd.open_trace("slow.hmdt")
    words = ["simulate", "dict.misses", "--policy", "age", "--set", "headroom_min=4KiB"]
    found = hmd.simulate_policies("dict.misses", "age", set={"headroom_min": "4KiB"})
    assert command(*words) == {**json.loads(json.dumps(found, default=str)), "made_by": None}
    found = slow.estimate("fast.hmdt", hot_first="25%")
    printed = command("estimate", "slow.hmdt", "fast.hmdt", "--hot-first", "25%")
    assert printed == {**found, "made_by": None}
    found = slow.estimate(steps=4)
    assert command("estimate", "slow.hmdt", "--steps", "4") == {**found, "made_by": None}
    assert found["made_by"]["settings"]["steps"] == 4
    assert found["schema"] == 1


def test_wrong_options_are_errors_of_one_line(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^unknown argument '--fats'; did you mean '--fast'"):
        hmd.simulate_policies("dict.misses", fats="25%")
    with pytest.raises(UsageError, match="no policy 'nothing'"):
        hmd.simulate_policies("dict.misses", ["nothing"])


def test_picture_is_shown_and_saved(folder: Path) -> None:
    picture = hmd.open_trace("slow.hmdt").plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    Picture(picture.png).save("trace.png")
    assert Path("trace.png").read_bytes() == picture.png


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_have_all_columns(folder: Path, package: str) -> None:
    slow = hmd.open_trace("slow.hmdt")
    make = getattr(slow, f"to_{package}")
    if find_spec(package) is None:
        with pytest.raises(MissingError, match=rf"needs {package}.*\[frames\]"):
            make()
        return
    frame = make()
    assert frame.shape == (len(SLOW.samples), len(COLUMNS))
    assert (frame["address"].to_numpy() == SLOW.samples.address).all()
