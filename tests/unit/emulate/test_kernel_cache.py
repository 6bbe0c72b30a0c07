# SPDX-License-Identifier: MIT
"""What the host compiles for the guest."""

from __future__ import annotations

from importlib.util import cache_from_source
from pathlib import Path

import pytest

from hmd.base import units
from hmd.emulate.vm import images


def test_warm_kernels_compiles_bytecode_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert units.__file__ is not None
    compiled = Path(cache_from_source(units.__file__))
    compiled.unlink(missing_ok=True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(images, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr("hmd.policy.registry.warm_apart", lambda environment: None)
    images.warm_kernels()
    assert compiled.exists()
