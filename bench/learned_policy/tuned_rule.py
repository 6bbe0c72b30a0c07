"""Rules tuned for one program and one ratio: the strongest baseline of the learned policy.

Takes a recording and a machine; gives the rule and the settings that are fastest there, of
``TRIALS`` of each rule's (:mod:`hmd.simulate.tuning`). The samples of trials have a seed of their
own, so that results are with other samples. Takes as many simulations; each is kept in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.learned_policy.networks import charged
from bench.learned_policy.summary import UNTUNED
from hmd.decide import registry
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.learn.training_rows import HEADROOM_BYTES
from hmd.simulate.journal import Journal
from hmd.simulate.search_space import documented
from hmd.simulate.simulation_cases import CaseRuntimes, SimulationCase
from hmd.simulate.tuning import TuningProgress, TuningTrial, tune

TRIALS: Final = 24
"""Settings that are tried of each rule, in addition to the defaults."""

CASES: Final = (
    ("betweenness", "1:2"), ("cg", "1:8"), ("index", "1:2"), ("pagerank", "1:2"), ("phases", "1:8"),
    ("updates_moving", "1:16"),
)  # fmt: skip
"""Program and ratio of the cases that are tuned unless others are named."""

_SEED: Final = 1000


@dataclass(frozen=True, slots=True)
class TunedRule:
    """The fastest rule, and its settings without those of the simulated machine's headroom."""

    policy: str
    values: dict[str, Any]


def tuned_rule(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    journal: Journal,
    say: Callable[[str], None],
    trials: int = TRIALS,
) -> TunedRule:
    """Return the best of all trials of both rules; MissingError without Optuna."""
    settings = charged(_SEED)
    case = SimulationCase("program", str(fast_pages), fast_pages, stream)
    found: list[tuple[float, TunedRule]] = []
    for name in UNTUNED:
        about = registry.about(name)
        headroom = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
        ranges = [
            each for each in documented(about, settings.tick_s) if each.knob.name not in headroom
        ]
        progress = TuningProgress(begins=partial(_tell, say, name))
        with CaseRuntimes(name, preset, settings, journal=journal) as runs:
            tuned = tune(
                runs, [case], [], headroom, ranges,
                trials=trials, seed=_SEED, fresh_seed=_SEED + 1, watch=progress,
            )  # fmt: skip
        best = tuned.best
        values = {key: each for key, each in best.values.items() if key not in headroom}
        found.append((sum(best.logs), TunedRule(name, values)))
    return min(found, key=lambda each: each[0])[1]


def _tell(say: Callable[[str], None], rule: str, number: int, best: TuningTrial) -> None:
    say(f"tuning {rule}: trial {number} of {TRIALS}, the best so far is {best.gain:.3f}")
