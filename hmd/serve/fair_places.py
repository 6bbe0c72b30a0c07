"""Places for the connections of a server, shared fairly by those who connect.

An owner is a user or an address. One owner has a limited number of places, and where all places are
taken, a newcomer gets one of the owner with the most. A connection that has not sent its request
yet is idle and gives way first, so that idle connections never keep anyone out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class FairPlaces(Generic[Connection]):
    """The connections that have a place, oldest first; owners in ``kept`` give way last."""

    def __init__(self, places: int, per_owner: int, kept: Collection[Hashable] = ()) -> None:
        """Have ``places`` in all, ``per_owner`` of them for one owner."""
        self._places, self._per_owner, self._kept = places, per_owner, frozenset(kept)
        self._owner: dict[Connection, Hashable] = {}
        self._idle: set[Connection] = set()
        self._count: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Return how many have a place."""
        return len(self._owner)

    def enter(self, connection: Connection, owner: Hashable) -> Connection | None:
        """Give a new, idle connection a place; return the connection that has to close, if any.

        That is the newcomer itself where its owner's connections take all of the owner's places
        with requests.
        """
        closing: Connection | None = None
        if self._count[owner] >= self._per_owner:
            closing = self._oldest(owner, only_idle=True)
            if closing is None:
                return connection
        elif len(self._owner) >= self._places:
            closing = self._of_greediest()
        if closing is not None:
            self.leave(closing)
        self._owner[connection] = owner
        self._idle.add(connection)
        self._count[owner] += 1
        return closing

    def requested(self, connection: Connection) -> None:
        """Note that a connection has sent its request."""
        self._idle.discard(connection)

    def leave(self, connection: Connection) -> None:
        """Take the place back; a connection without one is ignored."""
        owner = self._owner.pop(connection, None)
        self._idle.discard(connection)
        if owner is not None:
            self._count[owner] -= 1
            if not self._count[owner]:
                del self._count[owner]

    def _of_greediest(self) -> Connection | None:
        """Return the connection that gives way to another owner's."""
        others = {owner: n for owner, n in self._count.items() if owner not in self._kept}
        counts = others or self._count
        greediest = max(counts, key=counts.__getitem__)
        idle = self._oldest(greediest, only_idle=True)
        return idle if idle is not None else self._oldest(greediest, only_idle=False)

    def _oldest(self, owner: Hashable, *, only_idle: bool) -> Connection | None:
        for connection, its in self._owner.items():
            if its == owner and (connection in self._idle or not only_idle):
                return connection
        return None
