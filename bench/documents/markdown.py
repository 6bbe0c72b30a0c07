# SPDX-License-Identifier: MIT
"""Markdown tables.

What a measurement was taken with: the commit of this checkout, and how busy the host was.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Return a Markdown table; the first ``text`` columns are text, the others figures."""
    rule = "|" + "---|" * text + "--:|" * (len(head) - text)
    return "\n".join(
        ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]
    )


ROOT: Final = Path(__file__).resolve().parents[2]


def commit() -> str:
    """Return the commit that is checked out, with ``-dirty`` where files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def host() -> str:
    """Return the host's CPUs, kernel and load average of the last minute, the bench's own in it."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs, Linux {os.uname().release}, load average {load:.1f}"
