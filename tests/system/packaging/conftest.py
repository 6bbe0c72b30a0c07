# SPDX-License-Identifier: MIT
"""Manual pages and completions as the build writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    generator = ROOT / "packaging/pages/generate.py"
    subprocess.run([sys.executable, str(generator), str(folder)], check=True, timeout=60)
    return folder
