"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Return a Markdown table; the first ``text`` columns are text, the others figures."""
    rule = "|" + "---|" * text + "--:|" * (len(head) - text)
    return "\n".join(
        ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]
    )
