"""Ticks, and the items into and out of each stage, durations and failures."""

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
"""The items of each stage."""


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
        "Interval between ticks now: tick, longer for the CPU quota, shorter after many moves.",
        of(lambda now: now.tick_s),
    ),
    gauge(
        "hmd_last_tick_timestamp_seconds",
        "seconds",
        "Unix time of the last tick; before the first tick, of the start.",
        of(lambda now: now.ticked_s),
    ),
    histogram(
        "hmd_tick_duration_seconds",
        "Duration of a tick, without the observe stage.",
        lambda now: {(): now.tick_seconds},
    ),
    histogram(
        "hmd_stage_duration_seconds",
        "Duration of one stage of a tick.",
        lambda now: {(stage.value,): numbers.seconds for stage, numbers in now.stages.items()},
        "stage",
    ),
    counter(
        "hmd_stage_in",
        "items",
        "Items into a stage. sample: records read; heat: samples; decide: resident pages, summed "
        "over ticks; migrate: planned pages; observe: ticks.",
        _by_item(lambda numbers: numbers.items_in),
        "stage",
        "item",
    ),
    counter(
        "hmd_stage_out",
        "items",
        "Items out of a stage. sample: samples of targets; heat: samples of known pages; decide: "
        "planned pages; migrate: moved pages; observe: published ticks.",
        _by_item(lambda numbers: numbers.items_out),
        "stage",
        "item",
    ),
    counter(
        "hmd_stage_failures",
        "ticks",
        "Ticks in which a stage failed; the log has the error.",
        _by_stage(lambda numbers: numbers.failures),
        "stage",
    ),
    gauge(
        "hmd_stage_last_success_timestamp_seconds",
        "seconds",
        "Unix time of the last success of a stage; before the first, of the start.",
        _by_stage(lambda numbers: numbers.succeeded_s),
        "stage",
    ),
)
