# SPDX-License-Identifier: MIT
"""Markdown tables.

What a measurement was taken with: the command, the commit of this checkout, the host and how busy
it was, and when. Each file of docs/results says so (bench.documents.figures checks that).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
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


def measured_with() -> dict[str, str]:
    """Return what this process measures with; figures of two boots differ by some per cent."""
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": commit(),
        "host": host(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text()[:8],
        "date": datetime.now(UTC).date().isoformat(),
    }
