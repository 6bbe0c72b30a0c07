"""What the drain worker is asked to do, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hmd.machine.nodes.topology import Topology
from hmd.machine.pages.mappings import Mappings
from hmd.machine.process_id import ProcessId


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """The nodes to empty now; each new set of nodes has a ``serial`` of its own.

    Ticks still move the pages of processes that are ``spared``; those of ``pinned`` ones stay.
    ``unmovable`` returns a process's mappings with those to keep marked. ``cpu_share`` of one CPU
    may be used for the search of pages that are on no drained node.
    """

    serial: int
    drained: frozenset[int]
    topology: Topology
    spared: frozenset[ProcessId] = frozenset()
    pinned: frozenset[ProcessId] = frozenset()
    unmovable: Callable[[ProcessId, Mappings], Mappings] = lambda _, mappings: mappings
    dry_run: bool = False
    cpu_share: float = 1.0


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of the passes for one ``serial``.

    ``left`` are pages of 4 KiB by node and reason as the last complete pass found them. ``settled``
    says that this pass covered all processes and moved nothing: what is left will stay.
    """

    serial: int = -1
    passes: int = 0
    moved_pages: int = 0
    left: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    settled: bool = False
