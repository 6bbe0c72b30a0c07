"""All families of metrics, one file a section of docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hmd.observe.families import daemon, moves, orders, sampling, stages, targets, tiers
from hmd.observe.family import Family


@dataclass(frozen=True, slots=True)
class Section:
    """Families that belong together, under a heading."""

    title: str
    families: tuple[Family, ...]


SECTIONS: Final = (
    Section("The daemon", daemon.FAMILIES),
    Section("Ticks and stages", stages.FAMILIES),
    Section("Sampling", sampling.FAMILIES),
    Section("Tiers and heat", tiers.FAMILIES),
    Section("Decisions and moves", moves.FAMILIES),
    Section("Targets", targets.FAMILIES),
    Section("Orders", orders.FAMILIES),
)

FAMILIES: Final = tuple(family for section in SECTIONS for family in section.families)
