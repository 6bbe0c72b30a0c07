"""Targets by their configured names; those after the first 64 count as ``other``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hmd.observe.metric_family import Values, counter, gauge
from hmd.observe.snapshot import AccessTotals, Snapshot


def _by_target(value: Callable[[AccessTotals], float]) -> Callable[[Snapshot], Values]:
    return lambda now: {(target.name,): value(target.numbers) for target in now.targets}


def _resident(now: Snapshot) -> Values:
    return {
        (target.name, str(tier)): size
        for target in now.targets
        for tier, size in enumerate(target.numbers.resident_bytes)
    }


def _accesses(now: Snapshot) -> Values:
    tiers = [*map(str, range(len(now.tiers))), "unknown"]
    return {
        (target.name, tier): count
        for target in now.targets
        for tier, count in zip(tiers, target.numbers.accesses, strict=True)
    }


def _fast_shares(now: Snapshot) -> Values:
    shares = {(target.name,): target.numbers.fast_share for target in now.targets}
    return {labels: share for labels, share in shares.items() if share is not None}


FAMILIES: Final = (
    gauge(
        "hmd_target_processes",
        "processes",
        "Processes of a target.",
        lambda now: {(target.name,): target.process_count for target in now.targets},
        "target",
    ),
    gauge(
        "hmd_target_resident_bytes",
        "bytes",
        "Resident memory of a target in a tier.",
        _resident,
        "target",
        "tier",
    ),
    counter(
        "hmd_target_accesses",
        "accesses",
        "Accesses of a target by the tier that served them: samples times the sampling period.",
        _accesses,
        "target",
        "tier",
    ),
    gauge(
        "hmd_target_fast_access_ratio",
        "ratio",
        "Share of a target's recent accesses that the fastest tier served.",
        _fast_shares,
        "target",
    ),
    counter(
        "hmd_target_samples",
        "samples",
        "Samples of a target.",
        _by_target(lambda numbers: numbers.samples),
        "target",
    ),
    counter(
        "hmd_target_promoted_bytes",
        "bytes",
        "Bytes of a target moved to a faster tier.",
        _by_target(lambda numbers: numbers.promoted_bytes),
        "target",
    ),
    counter(
        "hmd_target_demoted_bytes",
        "bytes",
        "Bytes of a target moved to a slower tier.",
        _by_target(lambda numbers: numbers.demoted_bytes),
        "target",
    ),
    counter(
        "hmd_target_move_failures",
        "pages",
        "Pages of a target that could not be moved.",
        _by_target(lambda numbers: numbers.failed_pages),
        "target",
    ),
)
