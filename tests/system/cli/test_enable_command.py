# SPDX-License-Identifier: MIT
"""hmd enable by a user who may not try the samplers."""

from __future__ import annotations

import os

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main


def test_enable_as_another_user_says_to_ask_as_root(capsys: pytest.CaptureFixture[str]) -> None:
    os.seteuid(65534)
    try:
        code = main(["enable", "--dry-run"])
    finally:
        os.seteuid(0)
    captured = capsys.readouterr()
    # Where perf is for everyone, a sampler works.
    assert code == Exit.NOT_PERMITTED or "sampler" in captured.out
    assert "no sampler works here" not in captured.err
