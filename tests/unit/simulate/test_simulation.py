# SPDX-License-Identifier: MIT
"""Policies in virtual time: gain, counts per tick, and reproducible runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hmd.base.quantities import Amount
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.policy import registry
from hmd.policy.admin import AdminState, Pin
from hmd.policy.plan import Policy
from hmd.simulate.machine import FAST, PROGRAM, SLOW, MigrationCost, SimulatedMachine
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import (
    TARGET,
    Simulated,
    SimulatedDaemon,
    SimulationSettings,
    baselines,
    simulate,
)
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

FAST_PAGES = HOT_PAGES + 64
SETTINGS = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))
FREE = replace(SETTINGS, sampling=PmuSettings(period=23, free=True))


def policy(name: str) -> Policy:
    has = set(registry.info(name).settings_type.model_fields)
    kept = {"headroom": 0.0, "headroom_min": 8 * 4096}
    return registry.create(name, {key: value for key, value in kept.items() if key in has})


def run(
    name: str, stream: MissStream, preset: Preset, settings: SimulationSettings = SETTINGS
) -> Simulated:
    return simulate(stream, preset, FAST_PAGES, policy(name), settings)


@pytest.fixture(scope="module")
def fixed(settled: MissStream, preset: Preset) -> dict[str, float]:
    return baselines(settled, preset, FAST_PAGES)


def test_baselines_known_order_of_runtimes(fixed: dict[str, float]) -> None:
    assert fixed["all fast"] < fixed["oracle"] < fixed["first touch"] < fixed["all slow"]
    assert fixed["oracle"] < fixed["interleaved once"] < fixed["all slow"]


def test_policy_none_equals_first_touch(
    settled: MissStream, preset: Preset, fixed: dict[str, float]
) -> None:
    none = run("none", settled, preset, FREE)
    assert none.runtime_s == pytest.approx(fixed["first touch"], rel=1e-9)
    assert none.moved_bytes == 0


def test_simulate_samples_cost_the_program_time(settled: MissStream, preset: Preset) -> None:
    free, paid = run("none", settled, preset, FREE), run("none", settled, preset)
    records = sum(tick.samples for tick in paid.ticks)
    cost = preset.sampling
    interrupts = records // cost.buffer_records
    expected = (records * cost.record_ns + interrupts * cost.interrupt_ns) * 1e-9
    assert paid.runtime_s - free.runtime_s == pytest.approx(expected, rel=0.01)


def test_simulate_lost_samples_cost_as_much_as_others(settled: MissStream, preset: Preset) -> None:
    lossy = replace(SETTINGS, sampling=replace(SETTINGS.sampling, loss=1.0))
    lost = run("none", settled, preset, lossy)
    assert sum(tick.samples for tick in lost.ticks) == 0
    assert lost.runtime_s == run("none", settled, preset).runtime_s


@pytest.mark.parametrize("name", ["histogram", "benefit"])
def test_policy_fixed_hot_set_promoted(
    name: str, settled: MissStream, preset: Preset, fixed: dict[str, float]
) -> None:
    found = run(name, settled, preset)
    assert found.runtime_s < 0.75 * fixed["first touch"]
    assert found.runtime_s > fixed["oracle"]
    assert found.ticks[-1].fast_share > 0.85 > 0.3 > found.ticks[0].fast_share


@pytest.mark.parametrize("name", ["histogram", "benefit"])
def test_policy_moving_hot_set_followed(name: str, moving: MissStream, preset: Preset) -> None:
    fixed = baselines(moving, preset, FAST_PAGES)
    found = run(name, moving, preset)
    assert found.runtime_s < fixed["oracle"]
    assert found.ticks[-1].fast_share > 0.8


def test_simulate_late_detection_less_gain(
    settled: MissStream, preset: Preset, fixed: dict[str, float]
) -> None:
    whole, half = fixed["first touch"], fixed["first touch"] / 2
    at_once, late, never = (
        run("benefit", settled, preset, replace(FREE, found_s=found_s))
        for found_s in (0.0, half, whole)
    )
    assert at_once.runtime_s < late.runtime_s < never.runtime_s
    assert never.runtime_s == pytest.approx(whole, rel=1e-9)
    samples = [sum(tick.samples for tick in found.ticks) for found in (at_once, late)]
    assert samples[1] == pytest.approx(samples[0] / 2, rel=0.1)


def test_simulate_equal_settings_equal_runs(settled: MissStream, preset: Preset) -> None:
    first, again = (run("benefit", settled, preset) for _ in range(2))
    assert first == again
    other = SimulationSettings(
        tick_s=SETTINGS.tick_s, delay_s=SETTINGS.delay_s, sampling=PmuSettings(period=23, seed=2)
    )
    assert run("benefit", settled, preset, other) != first


def test_simulate_ticks_sum_to_totals(settled: MissStream, preset: Preset) -> None:
    found = run("histogram", settled, preset)
    assert sum(t.fast_misses + t.slow_misses for t in found.ticks) == len(settled)
    ends = [tick.end_s for tick in found.ticks]
    assert ends == sorted(ends)
    moved = sum(t.promoted_pages + t.demoted_pages for t in found.ticks) * 4096
    assert found.moved_bytes == moved > 0
    samples = sum(tick.samples for tick in found.ticks)
    assert samples == pytest.approx(len(settled) / 23, rel=0.02)


def test_simulate_sample_loss_fewer_samples(settled: MissStream, preset: Preset) -> None:
    lossy = SimulationSettings(
        tick_s=SETTINGS.tick_s, delay_s=SETTINGS.delay_s, sampling=PmuSettings(23, loss=0.9)
    )
    few, all_of_them = run("histogram", settled, preset, lossy), run("histogram", settled, preset)
    assert 0 < sum(t.samples for t in few.ticks) < 0.2 * sum(t.samples for t in all_of_them.ticks)


def fast_share_under(
    admin: AdminState | None, stream: MissStream, preset: Preset, settings: SimulationSettings
) -> float:
    """Share of the last tick's misses that the fast node served."""
    done = simulate(stream, preset, FAST_PAGES, policy("histogram"), settings, None, admin)
    return done.ticks[-1].fast_share


def test_fast_max_keeps_most_of_the_hot_set_slow(settled: MissStream, preset: Preset) -> None:
    limited = replace(SETTINGS, fast_max=Amount(size=HOT_PAGES // 4 * 4096))
    assert fast_share_under(None, settled, preset, SETTINGS) > 0.85
    assert 0.15 < fast_share_under(None, settled, preset, limited) < 0.35


def test_fast_max_is_kept_at_every_tick(settled: MissStream, preset: Preset) -> None:
    settings = replace(SETTINGS, fast_max=Amount(share=0.25))
    with SimulatedMachine(settled, preset, FAST_PAGES) as machine:
        daemon = SimulatedDaemon(machine, policy("histogram"), settings)
        used = []
        while not machine.done:
            daemon.tick()
            used.append(FAST_PAGES - machine.free_pages(FAST))
    assert len(used) > 10
    # First touch fills the node before the first tick; from then on the limit holds.
    assert max(used[1:]) <= FAST_PAGES // 4


@pytest.mark.parametrize("pin", [{"pins": {PROGRAM: Pin(None, 0)}}, {"paused": True}])
def test_pinned_or_paused_policy_moves_nothing(
    pin: dict[str, object], settled: MissStream, preset: Preset
) -> None:
    admin = AdminState(**pin)  # type: ignore[arg-type]
    done = simulate(settled, preset, FAST_PAGES, policy("histogram"), SETTINGS, None, admin)
    assert done.moved_bytes == 0
    assert done.runtime_s == run("none", settled, preset).runtime_s


def test_target_pinned_to_the_slow_node_leaves_the_fast_one(
    settled: MissStream, preset: Preset
) -> None:
    admin = AdminState(target_pins={TARGET: Pin(SLOW, 0)})
    done = simulate(settled, preset, FAST_PAGES, policy("histogram"), SETTINGS, None, admin)
    assert sum(tick.demoted_pages for tick in done.ticks) == FAST_PAGES
    assert sum(tick.promoted_pages for tick in done.ticks) == 0
    assert done.ticks[-1].fast_misses == 0


def test_drained_node_is_emptied_and_stays_empty(settled: MissStream, preset: Preset) -> None:
    admin = AdminState()
    admin.drain(frozenset({FAST}))
    done = simulate(settled, preset, FAST_PAGES, policy("histogram"), SETTINGS, None, admin)
    assert done.ticks[-1].fast_misses == 0
    assert sum(tick.promoted_pages for tick in done.ticks) == 0


def test_move_requested_ends_and_policy_has_the_pages_again(
    settled: MissStream, preset: Preset
) -> None:
    admin = AdminState(moves={PROGRAM: Pin(SLOW, 0)})
    assert fast_share_under(admin, settled, preset, SETTINGS) > 0.85
    assert not admin.moves


def test_pageout_takes_idle_pages_and_the_program_swaps_them_in(
    settled: MissStream, preset: Preset
) -> None:
    without = run("histogram", settled, preset)
    assert (without.paged_out_bytes, without.swapped_in_bytes) == (0, 0)
    idle = replace(SETTINGS, pageout_s=0.02)
    done = run("histogram", settled, preset, idle)
    assert 0 < done.swapped_in_bytes <= done.paged_out_bytes
    # All but the hot set is idle for most of the time.
    assert done.paged_out_bytes > (PAGES - 2 * FAST_PAGES) * 4096
    # One in ten misses goes to cold pages: what is out comes back, and the program waits for it.
    waited = done.swapped_in_bytes / 4096 * SETTINGS.cost.swap_in_ns * 1e-9
    assert done.runtime_s > without.runtime_s + 0.8 * waited
    free = run("histogram", settled, preset, replace(idle, cost=MigrationCost(swap_in_ns=0.0)))
    assert free.runtime_s < done.runtime_s - 0.5 * waited
    assert sum(t.fast_misses + t.slow_misses for t in done.ticks) == len(settled)


def test_pageout_equal_settings_give_equal_runs(preset: Preset) -> None:
    stream = stream_of(hot_set(200_000, PAGES - HOT_PAGES, 1))
    idle = replace(SETTINGS, pageout_s=0.012)
    first, again = (run("histogram", stream, preset, idle) for _ in range(2))
    assert first == again
    assert first.paged_out_bytes > 0
