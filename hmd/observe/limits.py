"""Limits of what the daemon reports, so that its memory and its answers are bounded.

The daemon applies them, and the dashboard refuses an answer beyond them. Imports nothing: the
dashboard's process has neither the heat table nor numba.
"""

from __future__ import annotations

from typing import Final

MAX_TARGETS: Final = 64
"""Targets with metrics of their own; the others are summed up."""

MAX_LISTED: Final = 256
"""Processes in the status, those with most resident memory."""

MAX_TICKS_KEPT: Final = 32
"""Recent ticks with moves in the status."""

MAX_FLOWS: Final = 8
"""Flows between nodes per tick with moves."""

MAX_BINS: Final = 512
"""Bins per process and tick of the heat map."""

MAX_TICKS: Final = 300
"""Ticks that the heat map remembers."""

MAX_PROCESSES: Final = 8
"""Processes per tick in the heat map, those with most resident memory."""
