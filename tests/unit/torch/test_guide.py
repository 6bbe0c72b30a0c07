# SPDX-License-Identifier: MIT
"""The scripts in the guide are run; skipped without PyTorch."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

GUIDE = Path(__file__).parents[3] / "docs/how-to/training-beyond-memory.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_script_of_the_guide_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(SCRIPTS[number], f"{GUIDE.name}, script {number + 1}", "exec"), {})
    printed = capsys.readouterr().out
    assert ("host memory needed" in printed) == ("hmd.torch.fit" in SCRIPTS[number])
    assert ("step with fast memory alone" in printed) == ("hmd.torch.tiered" in SCRIPTS[number])
    assert ("for a loss of at most" in printed) == ("hmd.torch.advise" in SCRIPTS[number])


def test_guide_has_a_script_per_function() -> None:
    assert len(SCRIPTS) == 4
