"""Fixture machines, and trees made on the spot."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = Path(__file__).parents[2] / "fixtures/machines"


@pytest.fixture
def machine() -> Callable[[str], Path]:
    return lambda name: MACHINES / name


@pytest.fixture
def machine_copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture machine that a test may change."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(MACHINES / name, tmp_path / name))

    return copy


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below tmp_path, with its folders."""

    def write_file(path: str, text: str) -> Path:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    return write_file
