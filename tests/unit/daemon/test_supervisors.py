# SPDX-License-Identifier: MIT
"""Kernels are compiled in a process of their own, and loaded once it has ended."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from hmd.daemon.supervisors import KernelLoader
from hmd.policy import registry

FAILS = "import sys; print(0, 83); sys.exit('no space left')"


def loader(monkeypatch: pytest.MonkeyPatch, code: str) -> KernelLoader:
    monkeypatch.setattr(registry, "COMPILER", (sys.executable, "-c", code))
    monkeypatch.setattr(registry, "needs_compiler", lambda _: True)
    return KernelLoader(logging.getLogger("hmd"))


def test_kernels_compiled_elsewhere_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import time; print(3, 83, flush=True); time.sleep(600)"
    kernels, signs = loader(monkeypatch, code), list[int]()
    begun_s = time.monotonic()
    while kernels.progress != "3 of 83 kernels" and time.monotonic() < begun_s + 30:
        assert not kernels.load("none", lambda: signs.append(1))
    assert kernels.progress == "3 of 83 kernels"
    assert signs
    assert caplog.text.count("compiling kernels") == 1
    kernels.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [("print(83, 83)", "all kernels are compiled"), (FAILS, "no space left")],
)
def test_kernels_loaded_when_compiler_has_ended_or_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, said: str
) -> None:
    caplog.set_level(logging.INFO)
    kernels = loader(monkeypatch, code)
    assert kernels.load("none", lambda: None, wait=True)
    assert not kernels.progress
    assert said in caplog.text
