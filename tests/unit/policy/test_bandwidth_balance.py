# SPDX-License-Identifier: MIT
"""Bandwidth balance: the share of accesses served by a tier is found by bisection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hmd.policy.latency import BandwidthBalance

BELOW_NS = 250.0


def crowded(room: float) -> Callable[[float], float]:
    """Return the loaded latency of a tier that serves at most this share of accesses."""
    return lambda share: 90 / (1 - min(share / room, 0.95))


def settled(balance: BandwidthBalance, wait_ns: Callable[[float], float], share: float) -> float:
    """Return the share after repeated measurements, where the tier serves its full share."""
    for _ in range(20):
        most = balance.max_share(0, share, wait_ns(share), BELOW_NS)
        share = min(1.0, most)
    return share


def test_balance_unloaded_tier_not_limited() -> None:
    assert BandwidthBalance().max_share(0, 0.9, 90.0, BELOW_NS) == 1.0


@pytest.mark.parametrize("room", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.95, 1.0])
def test_balance_loaded_tier_latencies_equalise(room: float, start: float) -> None:
    share = settled(BandwidthBalance(), crowded(room), start)
    assert crowded(room)(share) == pytest.approx(BELOW_NS, rel=0.15)


def test_balance_load_of_single_ticks_not_limited() -> None:
    balance = BandwidthBalance()
    for _ in range(5):
        assert balance.max_share(0, 0.9, 500.0, BELOW_NS) == 1.0
        assert balance.max_share(0, 0.9, 90.0, BELOW_NS) == 1.0


def test_balance_load_falls_limit_removed() -> None:
    balance = BandwidthBalance()
    assert settled(balance, crowded(0.3), 1.0) < 0.3
    assert settled(balance, lambda share: 90.0, 0.2) == 1.0


def test_balance_load_grows_limit_lowered() -> None:
    balance = BandwidthBalance()
    share = settled(balance, crowded(0.8), 1.0)
    assert settled(balance, crowded(0.2), share) < share / 2


def test_balance_two_tiers_limited_separately() -> None:
    balance = BandwidthBalance()
    assert balance.max_share(0, 0.8, 500.0, BELOW_NS) == 1.0
    assert balance.max_share(0, 0.8, 500.0, BELOW_NS) == pytest.approx(0.7)
    assert balance.max_share(1, 0.1, 90.0, BELOW_NS) == 1.0
