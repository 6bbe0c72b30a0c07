"""Places of connections: every newcomer gets one, at the cost of the owner with the most."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.serve.fair_places import FairPlaces

ROOT, ALICE, BOB = 0, 1000, 1001


def test_newcomer_of_another_owner_takes_oldest_idle_of_greediest() -> None:
    places: FairPlaces[str] = FairPlaces(4, 4)
    for name in ("a1", "a2", "a3"):
        assert places.enter(name, ALICE) is None
    places.requested("a1")
    assert places.enter("b1", BOB) is None
    assert places.enter("b2", BOB) == "a2"
    assert len(places) == 4


def test_newcomer_beyond_own_places_replaces_own_idle_only() -> None:
    places: FairPlaces[str] = FairPlaces(10, 2)
    places.enter("b1", BOB)
    places.enter("a1", ALICE)
    places.enter("a2", ALICE)
    assert places.enter("a3", ALICE) == "a1"
    places.requested("a2")
    places.requested("a3")
    assert places.enter("a4", ALICE) == "a4"
    places.leave("a2")
    assert places.enter("a5", ALICE) is None


def test_kept_owner_gives_way_last() -> None:
    places: FairPlaces[str] = FairPlaces(3, 3, [ROOT])
    places.enter("r1", ROOT)
    places.enter("r2", ROOT)
    places.enter("a1", ALICE)
    places.requested("a1")
    assert places.enter("r3", ROOT) == "a1"
    assert places.enter("b1", BOB) == "r1"


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "requested", "leave"]), st.integers(0, 30)),
        max_size=120,
    )
)
def test_places_bounded_and_shared_whatever_clients_do(steps: list[tuple[str, int]]) -> None:
    places: FairPlaces[int] = FairPlaces(8, 3, [ROOT])
    held: dict[int, int] = {}
    serial = 100
    for step, number in steps:
        owner = number % 5
        if step == "enter":
            serial += 1
            closing = places.enter(serial, owner)
            if closing != serial:
                held[serial] = owner
            if closing is not None:
                held.pop(closing, None)
            # A newcomer is refused only for its own owner's connections.
            assert closing != serial or list(held.values()).count(owner) == 3
        elif held:
            connection = list(held)[number % len(held)]
            if step == "requested":
                places.requested(connection)
            else:
                places.leave(connection)
                del held[connection]
        assert len(places) == len(held) <= 8
        assert all(list(held.values()).count(one) <= 3 for one in held.values())
