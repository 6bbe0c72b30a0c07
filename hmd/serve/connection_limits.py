"""Limits on the connections of a server, which its clients share fairly.

An owner is a user or an address. One owner has a limited number of connections, and where there are
as many as the server has in all, a new one replaces one of the owner with the most. A connection
that has not sent its request yet is idle and is replaced first, so that idle connections never keep
anyone out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class ConnectionLimiter(Generic[Connection]):
    """The connections of a server, oldest first; those of owners in ``kept`` are replaced last."""

    def __init__(self, limit: int, per_owner: int, kept: Collection[Hashable] = ()) -> None:
        """Permit ``limit`` connections in all, ``per_owner`` of one owner."""
        self._limit, self._per_owner, self._kept = limit, per_owner, frozenset(kept)
        self._owner: dict[Connection, Hashable] = {}
        self._idle: set[Connection] = set()
        self._count: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._owner)

    def enter(self, connection: Connection, owner: Hashable) -> Connection | None:
        """Add a new, idle connection; return the connection that has to close, if any.

        That is the new one itself where its owner has as many connections with requests as it may.
        """
        closing: Connection | None = None
        if self._count[owner] >= self._per_owner:
            closing = self._oldest(owner, only_idle=True)
            if closing is None:
                return connection
        elif len(self._owner) >= self._limit:
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
        """Remove a connection; one that is not there is ignored."""
        owner = self._owner.pop(connection, None)
        self._idle.discard(connection)
        if owner is not None:
            self._count[owner] -= 1
            if not self._count[owner]:
                del self._count[owner]

    def _of_greediest(self) -> Connection | None:
        """Return the connection that is replaced by another owner's."""
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
