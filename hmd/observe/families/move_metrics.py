"""Planned moves, their outcome and their savings."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import Values, counter, of
from hmd.observe.savings import RETURN_TICKS, WINDOW_TICKS
from hmd.observe.snapshot import Snapshot

_FOLLOWED: Final = f"in the {WINDOW_TICKS} ticks after each move"


def _unmoved(now: Snapshot) -> Values:
    failures = {"moved", *now.failure_reasons}
    return {(r,): pages for r, pages in now.pages_by_status.items() if r not in failures}


def _flows(now: Snapshot) -> Values:
    return {
        (str(a), str(b), str(now.tier_of(a)), str(now.tier_of(b))): size
        for (a, b), size in now.moved_bytes.items()
    }


FAMILIES: Final = (
    counter(
        "hmd_planned_pages",
        "pages",
        "Pages in plans, by direction: up to a faster tier, down to a slower one, level to another "
        "node of the same tier.",
        lambda now: {(direction,): pages for direction, pages in now.planned.items()},
        "direction",
    ),
    counter(
        "hmd_moved_bytes",
        "bytes",
        "Bytes moved between memory nodes.",
        _flows,
        "from_numa_node",
        "to_numa_node",
        "from_tier",
        "to_tier",
    ),
    counter(
        "hmd_unmoved_pages",
        "pages",
        "Planned pages that were not tried, by reason: the budget was spent (deferred), they were "
        "on the node already (already_there), they failed recently (blacklisted), ...",
        _unmoved,
        "reason",
    ),
    counter(
        "hmd_move_failures",
        "pages",
        "Pages that could not be moved, by reason.",
        lambda now: {(reason,): now.pages_by_status[reason] for reason in now.failure_reasons},
        "reason",
    ),
    counter(
        "hmd_move_calls",
        "calls",
        "Calls of move_pages(2) that moved pages.",
        of(lambda now: now.calls),
    ),
    counter(
        "hmd_paged_out_bytes",
        "bytes",
        "Bytes of idle pages paged out to swap, zram or their files.",
        of(lambda now: now.paged_out_bytes),
    ),
    counter(
        "hmd_predicted_saving_seconds",
        "seconds",
        "Stall time that moves to nodes with lower latency were predicted to save, from the heat "
        f"of the pages in the plan, {_FOLLOWED}.",
        of(lambda now: now.savings.predicted_saved_s),
    ),
    counter(
        "hmd_realised_saving_seconds",
        "seconds",
        f"Stall time that the same moves saved, from the samples {_FOLLOWED}.",
        of(lambda now: now.savings.realised_saved_s),
    ),
    counter(
        "hmd_predicted_loss_seconds",
        "seconds",
        "Stall time that moves to nodes with higher latency were predicted to cost, from the heat "
        f"of the pages in the plan, {_FOLLOWED}.",
        of(lambda now: now.savings.predicted_lost_s),
    ),
    counter(
        "hmd_realised_loss_seconds",
        "seconds",
        f"Stall time that the same moves cost, from the samples {_FOLLOWED}.",
        of(lambda now: now.savings.realised_lost_s),
    ),
    counter(
        "hmd_ping_pong_pages",
        "pages",
        f"Pages that moved back to their former tier within {RETURN_TICKS} ticks.",
        of(lambda now: now.savings.returned_pages),
    ),
)
