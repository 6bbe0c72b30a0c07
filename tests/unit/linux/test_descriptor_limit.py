# SPDX-License-Identifier: MIT
"""The limit of open files, and how many of them are pidfds."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from hmd.linux.own_process import RESERVED, max_pidfds


@pytest.mark.parametrize(
    ("limit", "most"),
    [(64, 32), (1024, 512), (65536, 65536 - RESERVED), (resource.RLIM_INFINITY, sys.maxsize)],
)
def test_pidfds_leave_room_at_any_limit(
    limit: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert max_pidfds() == most


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource; from hmd.linux.own_process import raise_descriptor_limit as r;"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256)); r();"
        " print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    answer = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert answer == "(256, 256)\n"
