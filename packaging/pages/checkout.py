# SPDX-License-Identifier: MIT
"""Imported first by the scripts of this folder: hmd is the checkout's, not an installed one."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
