# SPDX-License-Identifier: MIT
"""Progress of a benchmark: lines on standard error, next to the results on standard output."""

from __future__ import annotations

import sys


def print_progress(line: str) -> None:
    """Print a line at once."""
    print(line, file=sys.stderr, flush=True)
