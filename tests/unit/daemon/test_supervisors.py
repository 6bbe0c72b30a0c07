# SPDX-License-Identifier: MIT
"""Kernels are compiled in a process of their own, and loaded once it has ended."""

from __future__ import annotations

import logging
import os
import sys

import psutil
import pytest

from hmd.daemon.supervisors import KernelLoader
from hmd.policy import registry


def loader(monkeypatch: pytest.MonkeyPatch, code: str) -> KernelLoader:
    monkeypatch.setattr(registry, "COMPILER", (sys.executable, "-c", code))
    monkeypatch.setattr(registry, "needs_compiler", lambda _: True)
    return KernelLoader(logging.getLogger("hmd"))


def command_line(process: psutil.Process) -> list[str]:
    """Return the arguments; none of a child that another test left and that has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_kernels_compiled_elsewhere_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels, signs = loader(monkeypatch, "import time; time.sleep(600)"), list[int]()
    for _ in range(3):
        assert not kernels.load("none", lambda: signs.append(1))
        assert kernels.compiling
    assert len(signs) == 3
    assert caplog.text.count("compiling kernels") == 1
    kernels.close()


def test_compiler_does_not_get_the_terminals_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; time.sleep(601)"
    kernels = loader(monkeypatch, code)
    kernels.load("none", lambda: None)
    try:
        started = [each.pid for each in psutil.Process().children() if code in command_line(each)]
        assert [os.getpgid(pid) == os.getpgid(0) for pid in started] == [False]
    finally:
        kernels.close()


@pytest.mark.parametrize(
    ("code", "said"), [("", "kernels are compiled\n"), ("exit(1)", "the daemon does it itself")]
)
def test_kernels_loaded_when_compiler_has_ended_or_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, said: str
) -> None:
    caplog.set_level(logging.INFO)
    kernels = loader(monkeypatch, code)
    assert kernels.load("none", lambda: None, wait=True)
    assert not kernels.compiling
    assert said in caplog.text
