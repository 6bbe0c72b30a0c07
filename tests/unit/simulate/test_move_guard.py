"""The guard, in modelled time: adversarial programs lose almost nothing, others keep what they win.

A property of modelled time, exact and repeatable: no figure here depends on the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt
import pytest

from hmd.cli.tables.status_tables import guard_state
from hmd.daemon.guard_report import GuardReport
from hmd.decide import registry
from hmd.decide.move_guard import GuardLevel, MoveGuard
from hmd.decide.plan import Policy
from hmd.emulate.preset import Preset
from hmd.quantities import Amount
from hmd.simulate.simulated_pmu import PmuSettings
from hmd.simulate.simulation import Simulated, SimulationSettings, simulate
from tests.unit.simulate.conftest import stream_of

GUARDED_PAGES, GUARDED_HOT = 6144, 1536
MISSES = 500_000
SETTINGS = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))
KEPT: dict[str, object] = {"headroom_fraction": 0.0, "headroom_bytes": 8 * 4096}
WORST = 0.98

Pages = npt.NDArray[np.int64]


def hot_part(misses: int, first: int, seed: int) -> Pages:
    """Nineteen in twenty misses within the hot set that begins at a page."""
    random = np.random.default_rng(seed)
    hot = first + random.integers(0, GUARDED_HOT, misses)
    return np.where(random.random(misses) < 0.95, hot, random.integers(0, GUARDED_PAGES, misses))


def flips(misses_per_set: int, lead: int = 0) -> Pages:
    """Two hot sets in turn, neither of which is on the fast node at first."""
    parts = [hot_part(lead, GUARDED_HOT, 99)] if lead else []
    for number in range(MISSES // misses_per_set):
        first = GUARDED_HOT if number % 2 else 3 * GUARDED_HOT
        parts.append(hot_part(misses_per_set, first, number))
    return np.concatenate(parts)


def adversary(name: str) -> Pages:
    """The pages of a program's misses. A tick is about 13,000 misses."""
    random = np.random.default_rng(1)
    if name == "uniform":
        return random.integers(0, GUARDED_PAGES, MISSES)
    if name == "streaming":
        return np.arange(MISSES) // 8 % GUARDED_PAGES
    return flips(13_000) if name == "flips each tick" else flips(26_500, lead=6_000)


def run(
    pages: Pages,
    preset: Preset,
    policy: Policy,
    progress: Callable[[float], None] | None = None,
) -> Simulated:
    stream = stream_of(pages, GUARDED_PAGES)
    return simulate(stream, preset, GUARDED_HOT + 64, policy, SETTINGS, progress)


@pytest.mark.parametrize(
    "name", ["uniform", "streaming", "flips each tick", "flips just after each move"]
)
def test_guard_adversarial_program_hardly_slower_than_without_moves(
    name: str, preset: Preset
) -> None:
    pages = adversary(name)
    still = run(pages, preset, registry.make("none")).runtime_s
    # The default policy needs no guard: it knows what moves cost.
    for policy, guard in (("benefit", False), ("learned", True), ("histogram", True)):
        guarded = registry.guarded(policy, KEPT, guard)
        assert still / run(pages, preset, guarded).runtime_s >= WORST, policy


def test_guard_harmful_policy_stopped_and_reported(
    preset: Preset, caplog: pytest.LogCaptureFixture
) -> None:
    pages = adversary("streaming")
    still = run(pages, preset, registry.make("none")).runtime_s
    policy = registry.guarded("age", KEPT, True)
    assert isinstance(policy, MoveGuard)
    assert still / run(pages, preset, registry.make("age", KEPT)).runtime_s < 0.67
    report = GuardReport(logging.getLogger("hmd.guard"))

    def reported(_: float) -> None:
        report.of(policy)

    with caplog.at_level(logging.INFO, "hmd.guard"):
        guarded = run(pages, preset, policy, reported)
    assert still / guarded.runtime_s >= WORST
    state = report.of(policy)
    assert state is not None
    # The rule to fall back to moves nothing either.
    assert (state.fallbacks, state.level) == (1, GuardLevel.RULE)
    assert state.retry_ticks > 0
    (first,) = (record.getMessage() for record in caplog.records)
    assert "the rule benefit plans; next try in at most 64 ticks" in first
    (line,) = guard_state({**asdict(state), "level": state.level.name.lower()})
    assert "the rule benefit plans, next try in at most" in line


def test_guard_useful_policy_keeps_its_gain(preset: Preset) -> None:
    pages = hot_part(MISSES, 3 * GUARDED_HOT, 7)
    still = run(pages, preset, registry.make("none")).runtime_s
    free = run(pages, preset, registry.make("histogram", KEPT)).runtime_s
    policy = registry.guarded("histogram", KEPT, True)
    assert isinstance(policy, MoveGuard)
    # The first moves wait until those before them have paid: the run has twenty ticks.
    assert still - run(pages, preset, policy).runtime_s > 0.85 * (still - free)
    assert policy.state.level == GuardLevel.POLICY
    assert policy.state.saved_s > 5 * policy.state.cost_s
    # Plans promise no more than about what comes true.
    assert policy.state.predicted_s > 0.3 * policy.state.saved_s


def test_guard_policy_that_pays_after_a_bad_start_tried_again_by_trials(preset: Preset) -> None:
    """A stream spends the credit; the hot set that follows is found long before the wait ends."""
    late = np.concatenate([adversary("streaming"), hot_part(3 * MISSES, 2 * GUARDED_HOT, 7)])
    still = run(late, preset, registry.make("none")).runtime_s
    free = run(late, preset, registry.make("histogram", KEPT)).runtime_s
    policy = MoveGuard(registry.make("histogram", KEPT))
    levels: list[GuardLevel] = []
    guarded = run(late, preset, policy, lambda _: levels.append(policy.state.level))
    stopped = levels.index(GuardLevel.NONE)
    assert GuardLevel.POLICY in levels[stopped : stopped + 50]  # the wait alone is 64 ticks
    assert guarded.runtime_s < free < still


def test_guard_room_kept_by_demoting_pages_in_use_not_made(preset: Preset) -> None:
    """Nothing pays for room that a program does not ask for."""
    roomy: dict[str, object] = {"headroom_fraction": 0.0, "headroom_bytes": 512 * 4096}
    pages = adversary("uniform")
    moved = [
        run(pages, preset, registry.guarded("benefit", roomy, guard)).moved_bytes
        for guard in (True, False)
    ]
    assert moved[0] < moved[1] / 4


def test_guard_targets_with_limits_not_guarded(preset: Preset) -> None:
    """A limit holds although its moves cost more than they save."""
    pages = adversary("streaming")
    limited = replace(SETTINGS, fast_max=Amount(share=0.1))
    stream = stream_of(pages, GUARDED_PAGES)
    runs = [
        simulate(
            stream, preset, GUARDED_HOT, registry.guarded("histogram", KEPT, guard), limited
        ).moved_bytes
        for guard in (True, False)
    ]
    assert runs[0] == runs[1] > 0


def test_registry_guards_histogram_and_learned_by_default_others_on_request() -> None:
    for name in ("histogram", "learned"):
        assert isinstance(registry.guarded(name, {}, None), MoveGuard)
        assert not isinstance(registry.guarded(name, {}, False), MoveGuard)
    assert not isinstance(registry.guarded("benefit", {}, None), MoveGuard)
    report = GuardReport(logging.getLogger("hmd.guard"))
    assert report.of(registry.guarded("benefit", {}, None)) is None
    assert guard_state(None) == []
    assert isinstance(registry.guarded("benefit", {}, True), MoveGuard)
