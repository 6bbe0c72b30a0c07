"""What the guard of moves reports: its state to the observer, each change of level to the log."""

from __future__ import annotations

import logging

from hmd.decide.move_guard import GuardLevel, GuardState, MoveGuard
from hmd.decide.plan import Policy

_NOW = {
    GuardLevel.POLICY: "the policy plans again",
    GuardLevel.RULE: "the rule benefit plans",
    GuardLevel.NONE: "nothing moves",
}


class GuardReport:
    """Follows the guard of the current policy, where it has one."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._level = GuardLevel.POLICY

    def of(self, policy: Policy) -> GuardState | None:
        """Return the guard's state, None without a guard; log that its level changed."""
        if not isinstance(policy, MoveGuard):
            self._level = GuardLevel.POLICY
            return None
        state = policy.state
        if state.level != self._level:
            self._level = state.level
            self._log.info("%s", guard_line(policy.name, state))
        return state


def guard_line(policy: str, state: GuardState) -> str:
    """Return one line on what moves brought and who plans now."""
    retry = f"; next try in at most {state.retry_ticks} ticks" if state.level else ""
    return (
        f"guard: moves by {policy} saved {state.saved_s:.3g} s and cost {state.cost_s:.3g} s:"
        f" {_NOW[state.level]}{retry}"
    )
