"""Ticks, and what each stage of them took in, gave out, and failed at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hmd.observe.metric_family import Values, counter, gauge, histogram, of
from hmd.observe.snapshot import Snapshot, StageNumbers
from hmd.observe.tick_record import Stage

ITEMS: Final = {
    Stage.SAMPLE: "samples",
    Stage.HEAT: "samples",
    Stage.DECIDE: "pages",
    Stage.MIGRATE: "pages",
    Stage.OBSERVE: "ticks",
}
"""What a stage's items are."""


def _by_stage(value: Callable[[StageNumbers], float]) -> Callable[[Snapshot], Values]:
    return lambda now: {(stage.value,): value(numbers) for stage, numbers in now.stages.items()}


def _by_item(value: Callable[[StageNumbers], float]) -> Callable[[Snapshot], Values]:
    return lambda now: {
        (stage.value, ITEMS[stage]): value(numbers) for stage, numbers in now.stages.items()
    }


FAMILIES: Final = (
    counter("hmd_ticks", "ticks", "Ticks done.", of(lambda now: now.ticks)),
    gauge(
        "hmd_tick_interval_seconds",
        "seconds",
        "Time from one tick to the next, as it is set.",
        of(lambda now: now.tick_s),
    ),
    gauge(
        "hmd_last_tick_timestamp_seconds",
        "seconds",
        "Unix time of the last tick, before the first of the start.",
        of(lambda now: now.ticked_s),
    ),
    histogram(
        "hmd_tick_duration_seconds",
        "Time that a tick took, what telling of it took aside.",
        lambda now: {(): now.tick_seconds},
    ),
    histogram(
        "hmd_stage_duration_seconds",
        "Time that a stage of a tick took.",
        lambda now: {(stage.value,): numbers.seconds for stage, numbers in now.stages.items()},
        "stage",
    ),
    counter(
        "hmd_stage_in",
        "items",
        "What went into a stage: records that the sampler read; samples; pages that the policy had "
        "before it, of each tick; pages planned to move; ticks to tell of.",
        _by_item(lambda numbers: numbers.items_in),
        "stage",
        "item",
    ),
    counter(
        "hmd_stage_out",
        "items",
        "What came out of a stage: samples of targets; samples whose page is known; pages planned "
        "to move; pages moved; ticks told of.",
        _by_item(lambda numbers: numbers.items_out),
        "stage",
        "item",
    ),
    counter(
        "hmd_stage_failures",
        "ticks",
        "Ticks in which a stage failed; the log says why.",
        _by_stage(lambda numbers: numbers.failures),
        "stage",
    ),
    gauge(
        "hmd_stage_last_success_timestamp_seconds",
        "seconds",
        "Unix time at which a stage last ran without failing, before the first of the start.",
        _by_stage(lambda numbers: numbers.succeeded_s),
        "stage",
    ),
)
