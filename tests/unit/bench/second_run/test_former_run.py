# SPDX-License-Identifier: MIT
"""What former runs tell of a run: values by page and progress, profiles, and the mixed policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.known_misses import KnownMisses, KnownMissesSettings, known_run
from bench.second_run.bound import document, means, runs_of, share
from bench.second_run.former_run import (
    Former,
    FormerStream,
    Mixed,
    Resolution,
    blocks_of,
    quantised,
)
from bench.second_run.objects import Mapping, objects_of
from bench.second_run.variants import BASE, variant_of, variants
from bench.suite.program import load_program
from hmd.base.errors import ConfigError, HmdError
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import MissValues
from hmd.policy import registry
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings, run_daemon, simulate
from tests.unit.simulate.conftest import BASE as FIRST_ADDRESS
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

FAST_PAGES = HOT_PAGES + 64
SETTINGS = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))
UNSAMPLED = replace(SETTINGS, sampling=PmuSettings(loss=1.0, free=True))
KNOWN = KnownMissesSettings(past=False, horizon_ticks=8, move_s=2e-6)


def run_of(stream: MissStream, preset: Preset) -> FormerStream:
    mappings = [Mapping(FIRST_ADDRESS // 4096, stream.user_pages)]
    return FormerStream(stream, MissValues(stream, preset), objects_of(stream, mappings))


@pytest.fixture(scope="module")
def preset() -> Preset:
    return load("dram-pm")


@pytest.fixture(scope="module")
def own(preset: Preset) -> FormerStream:
    """A run whose hot set moves once, half-way."""
    halves = [hot_set(250_000, PAGES - HOT_PAGES, 1), hot_set(250_000, PAGES // 2, 2)]
    return run_of(stream_of(np.concatenate(halves)), preset)


@pytest.fixture(scope="module")
def other(preset: Preset) -> FormerStream:
    """A run whose hot sets are the same, with other random numbers and more misses."""
    halves = [hot_set(300_000, PAGES - HOT_PAGES, 11), hot_set(300_000, PAGES // 2, 12)]
    return run_of(stream_of(np.concatenate(halves)), preset)


def test_former_of_itself_is_what_it_was(own: FormerStream) -> None:
    former = Former(own, [own], Resolution())
    for begin, end in ((0, len(own.stream)), (100_000, 140_000)):
        told = former.between(begin, end)
        assert np.abs(told - own.values.between(begin, end)).sum() < 0.02 * told.sum()


def test_former_other_run_finds_hot_set_of_the_moment(
    own: FormerStream, other: FormerStream
) -> None:
    told = Former(own, [other], Resolution()).between(50_000, 60_000)
    assert np.argmax(told) >= PAGES - HOT_PAGES
    told = Former(own, [other], Resolution()).between(400_000, 410_000)
    assert PAGES // 2 <= np.argmax(told) < PAGES // 2 + HOT_PAGES


def test_former_run_beats_rule_without_a_sample(
    own: FormerStream, other: FormerStream, preset: Preset
) -> None:
    former = Former(own, [other], Resolution())
    known = known_run(own.stream, preset, FAST_PAGES, former, KNOWN, UNSAMPLED)
    rule = simulate(own.stream, preset, FAST_PAGES, registry.create(registry.DEFAULT), SETTINGS)
    assert known.runtime_s < rule.runtime_s


def test_former_one_phase_knows_the_mean_alone(own: FormerStream, other: FormerStream) -> None:
    told = Former(own, [other], Resolution(phases=1))
    assert told.between(0, 1000) == pytest.approx(told.between(400_000, 401_000), rel=1e-3)


@pytest.mark.parametrize(("wrong", "expected"), [(False, True), (True, False)])
def test_mixed_follows_a_right_profile_and_leaves_a_wrong_one(
    own: FormerStream, other: FormerStream, preset: Preset, wrong: bool, expected: bool
) -> None:
    shuffled = np.random.default_rng(1) if wrong else None
    former = Former(own, [other], Resolution(blocks=512, phases=32, bits=8), shuffled)
    with SimulatedMachine(own.stream, preset, FAST_PAGES, SETTINGS.cost) as machine:
        known = KnownMisses(machine, former, KNOWN, SETTINGS.delay_s)
        mixed = Mixed(machine, former, known, registry.create(registry.DEFAULT))
        run_daemon(SimulatedDaemon(machine, mixed, SETTINGS))
    found = mixed.evidence()
    assert (found["former_ticks"] > 0.8 * found["ticks"]) == expected
    assert (found["bits_per_sample"] > 0) == expected


def test_blocks_of_budget_shared_by_size(own: FormerStream) -> None:
    blocks = blocks_of(own.objects, Resolution(blocks=12))
    assert np.bincount(blocks).tolist() == [PAGES // 12] * 12
    assert blocks_of(own.objects, Resolution()).tolist() == list(range(PAGES))


def test_quantised_within_half_a_level_and_nothing_is_nothing() -> None:
    rates = np.array([0.0, 1.0, 3.3, 900.0, 1000.0])
    assert quantised(rates, 0) is rates
    kept = quantised(rates, 4)
    assert kept[0] == 0
    assert np.abs(np.log2(kept[1:] / rates[1:])).max() <= 0.5
    assert quantised(np.array([1e-9, 1.0]), 4)[0] == 0


def test_variants_of_all_programs_differ_from_the_suite(tmp_path: Path) -> None:
    for name, found in variants().items():
        base = load_program(name)
        assert variant_of(name, BASE) == base
        for variant in found:
            made = variant_of(name, variant, tmp_path)
            same = {"name": base.name, "description": base.description}
            assert made.model_copy(update=same) != base
            assert made.name == f"{name}_{variant}"


def test_variant_of_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="take suite, other, smaller"):
        variant_of("cg", "larger")


def test_means_and_share_by_logarithms() -> None:
    seconds = {"first touch": 8.0, "benefit": 4.0, "clairvoyant": 1.0, "former run": 2.0}
    cases = [{"seconds": seconds}]
    assert means(cases)["former run"] == 4.0
    assert share(cases, "clairvoyant")["former run"] == 0.5


def test_document_bounds_may_move_nothing_and_sampled_policies_may_lose() -> None:
    names = ("benefit", "exact-past", "clairvoyant", "former run", "mixed")
    seconds = {"first touch": 1.0} | dict.fromkeys(names, 1.25)
    case = {"program": "cg", "variant": "smaller", "ratio": "1:2", "seconds": seconds}
    found = document([case])
    assert found["geomean"]["clairvoyant"] == found["geomean"]["former run"] == 1.0
    assert found["geomean"]["mixed"] == 0.8
    assert {row["policy"]: row["speed"] for row in found["rows"]}["benefit"] == 0.8


def test_runs_of_program_without_recordings_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.second_run.bound.SUITE", tmp_path)
    monkeypatch.setattr("bench.second_run.bound.recorded_variants", lambda program: [])
    with pytest.raises(HmdError, match=r"variants cg:smaller cg:suite"):
        runs_of("cg", "smaller")
