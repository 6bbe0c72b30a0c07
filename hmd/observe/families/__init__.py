"""All families of metrics, one file a section of docs/reference/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hmd.observe.families import (
    budget_metrics,
    control_metrics,
    daemon_metrics,
    guard_metrics,
    move_metrics,
    sampling_metrics,
    stage_metrics,
    target_metrics,
    tier_metrics,
)
from hmd.observe.metric_family import Family


@dataclass(frozen=True, slots=True)
class MetricSection:
    """The families under one heading."""

    title: str
    families: tuple[Family, ...]


SECTIONS: Final = (
    MetricSection("The daemon", daemon_metrics.FAMILIES),
    MetricSection("CPU budget", budget_metrics.FAMILIES),
    MetricSection("Ticks and stages", stage_metrics.FAMILIES),
    MetricSection("Sampling", sampling_metrics.FAMILIES),
    MetricSection("Tiers and heat", tier_metrics.FAMILIES),
    MetricSection("Decisions and moves", move_metrics.FAMILIES),
    MetricSection("Guard of moves", guard_metrics.FAMILIES),
    MetricSection("Targets", target_metrics.FAMILIES),
    MetricSection("Admin requests", control_metrics.FAMILIES),
)

FAMILIES: Final = tuple(family for section in SECTIONS for family in section.families)
