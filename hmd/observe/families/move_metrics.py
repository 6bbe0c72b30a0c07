"""What policies decided, what became of it, and what it brought."""

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
        "Pages that plans named: up to a faster tier, down, or to a node of the same tier (level).",
        lambda now: {(direction,): pages for direction, pages in now.planned.items()},
        "direction",
    ),
    counter(
        "hmd_moved_bytes",
        "bytes",
        "Bytes moved between nodes.",
        _flows,
        "from_numa_node",
        "to_numa_node",
        "from_tier",
        "to_tier",
    ),
    counter(
        "hmd_unmoved_pages",
        "pages",
        "Planned pages that were not tried, by reason: left by the budget for later (deferred), "
        "there before us (already_there), failed not long ago (blacklisted), ...",
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
        "hmd_move_calls", "calls", "Calls of move_pages that moved.", of(lambda now: now.calls)
    ),
    counter(
        "hmd_paged_out_bytes",
        "bytes",
        "Bytes of idle pages sent to swap, zram or their files.",
        of(lambda now: now.paged_out_bytes),
    ),
    counter(
        "hmd_predicted_saving_seconds",
        "seconds",
        "Time of waiting loads that moves to nodes that answer sooner were to save, by the heat "
        f"that plans had of the pages, {_FOLLOWED}.",
        of(lambda now: now.savings.predicted_saved_s),
    ),
    counter(
        "hmd_realised_saving_seconds",
        "seconds",
        f"Time of waiting loads that the same moves saved, by the samples {_FOLLOWED}.",
        of(lambda now: now.savings.realised_saved_s),
    ),
    counter(
        "hmd_predicted_loss_seconds",
        "seconds",
        "Time of waiting loads that moves to nodes that answer later were to cost, by the heat "
        f"that plans had of the pages, {_FOLLOWED}.",
        of(lambda now: now.savings.predicted_lost_s),
    ),
    counter(
        "hmd_realised_loss_seconds",
        "seconds",
        f"Time of waiting loads that the same moves cost, by the samples {_FOLLOWED}.",
        of(lambda now: now.savings.realised_lost_s),
    ),
    counter(
        "hmd_ping_pong_pages",
        "pages",
        f"Pages that moved up and down again, or down and up, within {RETURN_TICKS} ticks.",
        of(lambda now: now.savings.returned_pages),
    ),
)
