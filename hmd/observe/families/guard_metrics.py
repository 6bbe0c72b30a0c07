"""The guard of moves: what moves saved and cost by samples, and who plans now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hmd.decide.move_guard import GuardState
from hmd.observe.metric_family import Values, counter, gauge, of
from hmd.observe.snapshot import Snapshot


def _guarded(value: Callable[[GuardState], float]) -> Callable[[Snapshot], Values]:
    """Return the values of a figure of the guard: 0 where moves are not guarded."""
    return of(lambda now: 0.0 if now.guard is None else float(value(now.guard)))


FAMILIES: Final = (
    gauge(
        "hmd_guard_level",
        "",
        "Who plans moves under decide.guard: 0 the policy, 1 the rule benefit, 2 none. -1 where "
        "moves are not guarded; the other figures are then 0.",
        of(lambda now: -1.0 if now.guard is None else float(now.guard.level)),
    ),
    gauge(
        "hmd_guard_saved_seconds",
        "seconds",
        "Program time that moves saved by the samples of the 32 ticks after each, less what "
        "demotions lost.",
        _guarded(lambda guard: guard.saved_s),
    ),
    counter(
        "hmd_guard_cost_seconds",
        "seconds",
        "Program time that moves cost, by the guard's price of 3 us per page.",
        _guarded(lambda guard: guard.cost_s),
    ),
    gauge(
        "hmd_guard_predicted_seconds",
        "seconds",
        "Program time that plans promised to save in the same 32 ticks.",
        _guarded(lambda guard: guard.predicted_s),
    ),
    gauge(
        "hmd_guard_credit_seconds",
        "seconds",
        "Program time that moves may cost now.",
        _guarded(lambda guard: guard.credit_s),
    ),
    counter(
        "hmd_guard_fallbacks",
        "fallbacks",
        "How often moves did not pay, so that the rule planned from then on, or nothing moved.",
        _guarded(lambda guard: guard.fallbacks),
    ),
)
