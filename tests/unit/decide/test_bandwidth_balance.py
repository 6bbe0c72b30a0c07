"""The share of accesses that a tier may serve is found by bisection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hmd.decide.bandwidth_balance import Balance

BELOW_NS = 250.0


def crowded(room: float) -> Callable[[float], float]:
    """Loads queue at a tier that takes this share of them at most."""
    return lambda share: 90 / (1 - min(share / room, 0.95))


def settled(balance: Balance, wait_ns: Callable[[float], float], share: float) -> float:
    """The share after some looks, where the tier serves what it may."""
    for _ in range(20):
        most = balance.ceiling(0, share, wait_ns(share), BELOW_NS)
        share = min(1.0, most)
    return share


def test_a_tier_that_is_not_crowded_is_not_limited() -> None:
    assert Balance().ceiling(0, 0.9, 90.0, BELOW_NS) == 1.0


@pytest.mark.parametrize("room", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.95, 1.0])
def test_loads_wait_alike_in_the_end(room: float, start: float) -> None:
    share = settled(Balance(), crowded(room), start)
    assert crowded(room)(share) == pytest.approx(BELOW_NS, rel=0.15)


def test_a_program_that_asks_for_less_gets_all_again() -> None:
    balance = Balance()
    assert settled(balance, crowded(0.3), 1.0) < 0.3
    assert settled(balance, lambda share: 90.0, 0.2) == 1.0


def test_a_program_that_asks_for_more_gets_less() -> None:
    balance = Balance()
    share = settled(balance, crowded(0.8), 1.0)
    assert settled(balance, crowded(0.2), share) < share / 2


def test_tiers_are_limited_apart() -> None:
    balance = Balance()
    assert balance.ceiling(0, 0.8, 500.0, BELOW_NS) == pytest.approx(0.7)
    assert balance.ceiling(1, 0.1, 90.0, BELOW_NS) == 1.0
