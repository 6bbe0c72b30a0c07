# SPDX-License-Identifier: MIT
"""Limits on connections: a new one is added at the cost of the owner with the most."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.serve.bounded_server import ConnectionLimiter

ROOT, ALICE, BOB = 0, 1000, 1001


def test_connection_of_another_owner_replaces_oldest_idle_of_greediest() -> None:
    limiter: ConnectionLimiter[str] = ConnectionLimiter(4, 4)
    for name in ("a1", "a2", "a3"):
        assert limiter.enter(name, ALICE) is None
    limiter.mark_requested("a1")
    assert limiter.enter("b1", BOB) is None
    assert limiter.enter("b2", BOB) == "a2"
    assert len(limiter) == 4


def test_connection_beyond_own_limit_replaces_own_idle_only() -> None:
    limiter: ConnectionLimiter[str] = ConnectionLimiter(10, 2)
    limiter.enter("b1", BOB)
    limiter.enter("a1", ALICE)
    limiter.enter("a2", ALICE)
    assert limiter.enter("a3", ALICE) == "a1"
    limiter.mark_requested("a2")
    limiter.mark_requested("a3")
    assert limiter.enter("a4", ALICE) == "a4"
    limiter.leave("a2")
    assert limiter.enter("a5", ALICE) is None


def test_connections_of_kept_owner_replaced_last() -> None:
    limiter: ConnectionLimiter[str] = ConnectionLimiter(3, 3, [ROOT])
    limiter.enter("r1", ROOT)
    limiter.enter("r2", ROOT)
    limiter.enter("a1", ALICE)
    limiter.mark_requested("a1")
    assert limiter.enter("r3", ROOT) == "a1"
    assert limiter.enter("b1", BOB) == "r1"


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "requested", "leave"]), st.integers(0, 30)),
        max_size=120,
    )
)
def test_connections_bounded_and_shared_whatever_clients_do(steps: list[tuple[str, int]]) -> None:
    limiter: ConnectionLimiter[int] = ConnectionLimiter(8, 3, [ROOT])
    held: dict[int, int] = {}
    serial = 100
    for step, number in steps:
        owner = number % 5
        if step == "enter":
            serial += 1
            closing = limiter.enter(serial, owner)
            if closing != serial:
                held[serial] = owner
            if closing is not None:
                held.pop(closing, None)
            # A new one is refused only for its own owner's connections.
            assert closing != serial or list(held.values()).count(owner) == 3
        elif held:
            connection = list(held)[number % len(held)]
            if step == "requested":
                limiter.mark_requested(connection)
            else:
                limiter.leave(connection)
                del held[connection]
        assert len(limiter) == len(held) <= 8
        assert all(list(held.values()).count(one) <= 3 for one in held.values())
