# SPDX-License-Identifier: MIT
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main


def test_record_without_pytorch_names_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    script = tmp_path / "train.py"
    script.write_text("print('runs')\n")
    assert main(["tensors", "record", str(script)]) == Exit.MISSING
    printed = capsys.readouterr()
    assert "hmd tensors record needs PyTorch: " in printed.err
    assert "'hmd-tiering[torch]'" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("option", ["--steps", "--warmup"])
def test_record_without_a_step_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["tensors", "record", option, "0", "train.py"])
    assert left.value.code == Exit.USAGE
    assert "'0': take a whole number from 1 to 1000" in capsys.readouterr().err
