"""Page heat in flat arrays (see the class)."""

from __future__ import annotations


class HeatTable:
    """Cooled access counts per page, in 2 MiB chunks."""
