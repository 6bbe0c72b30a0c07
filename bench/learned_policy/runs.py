"""Runs of policies on programs held out, each kept in a journal by what it depends on.

Takes a case and a policy's label; gives seconds and MiB moved. A key is the recording, the machine,
the ratio, the settings, the seed, the weights, and the code that the policy runs, so that a change
elsewhere repeats nothing. A run takes 0.2 µs of CPU per miss; the two bounds, twelve runs, twelve
times as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from bench.compare.bounds import PROGRAMS, SETTINGS, fast_pages
from bench.compare.comparison_case import RATIOS
from bench.compare.policies import SUITE
from bench.learned_policy.networks import HeldOutNetworks, charged
from bench.learned_policy.summary import BOUNDS
from bench.learned_policy.tuned_rule import CASES as TUNED_CASES
from bench.learned_policy.tuned_rule import TRIALS, TunedRule, tuned_rule
from bench.source_closure import closure_digest
from bench.suite.ground_truth import program_digest, recorded
from hmd.decide import registry
from hmd.decide.plan import Policy
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.errors import UsageError
from hmd.learn.training import make_policy
from hmd.learn.training_rows import HEADROOM_BYTES
from hmd.simulate.bounds import bounds
from hmd.simulate.journal import Journal, digest
from hmd.simulate.known_misses import CLAIRVOYANT, EXACT_PAST, MissValues
from hmd.simulate.simulation import simulate

FIRST_TOUCH, NONE = "first touch", "none"
GUARDED, UNGUARDED = "learned", "learned, unguarded"
TUNED: Final = "tuned rule"
LEARNED: Final = (GUARDED, UNGUARDED)
POLICIES: Final = (
    FIRST_TOUCH, NONE, "histogram", registry.DEFAULT, GUARDED, UNGUARDED, *BOUNDS, TUNED,
)  # fmt: skip
"""Labels of the runs of each case; first touch runs without a daemon."""

_ONCE: Final = (FIRST_TOUCH, NONE, *BOUNDS)  # no decision of theirs depends on samples
_BOUND_RUNS: Final = 6.5
_SIMULATOR: Final = ("hmd.simulate.simulation",)
_RULE: Final = (*_SIMULATOR, f"hmd.decide.policies.{registry.DEFAULT}")
_MODULES: Final = {
    FIRST_TOUCH: _SIMULATOR,
    NONE: _SIMULATOR,
    "histogram": (*_SIMULATOR, "hmd.decide.policies.histogram"),
    registry.DEFAULT: _RULE,
    GUARDED: (*_RULE, "hmd.decide.policies.learned"),
    UNGUARDED: (*_SIMULATOR, "hmd.decide.policies.learned"),
    CLAIRVOYANT: ("hmd.simulate.bounds",),
    EXACT_PAST: ("hmd.simulate.bounds",),
    TUNED: (*_RULE, "hmd.decide.policies.histogram", "bench.learned_policy.tuned_rule"),
}


@dataclass(frozen=True, slots=True, order=True)
class HeldOutRun:
    """A run to make: a case, the label of a policy, and the seed of its samples."""

    seed: int
    program: str
    ratio: str
    policy: str

    def __str__(self) -> str:
        """Return what progress shows."""
        return f"{self.program} {self.ratio} {self.policy}, seed {self.seed}"

    @property
    def weight(self) -> float:
        """How many simulations it takes."""
        if self.policy == TUNED and self.seed == 1:
            return 2.0 * TRIALS + 1.0
        return _BOUND_RUNS if self.policy in BOUNDS else 1.0


def runs_of(
    given: str,
    seeds: int,
    policies: tuple[str, ...] = POLICIES,
    programs: tuple[str, ...] = PROGRAMS,
    ratios: tuple[str, ...] = RATIOS,
) -> list[HeldOutRun]:
    """Return the runs of ``PROGRAM:RATIO:POLICY,...``, all of them if empty.

    ``POLICY`` is a label with hyphens, such as ``learned-unguarded``; without it, all policies, and
    without ``RATIO``, all ratios. Tuned rules are only of the cases of
    :mod:`bench.learned_policy.tuned_rule`, or by name. All cases have their first seed before any
    has the next.
    """
    short = {label.replace(",", "").replace(" ", "-"): label for label in policies}
    chosen: list[tuple[str, str, str]] = []
    for each in given.split(",") if given else programs:
        program, _, rest = each.partition(":")
        ratio = next((r for r in ratios if rest == r or rest.startswith(f"{r}:")), "")
        policy = rest.removeprefix(ratio).removeprefix(":")
        if program not in programs or (rest and not ratio) or (policy and policy not in short):
            raise UsageError(
                f"{each!r} is no case: write PROGRAM:RATIO:POLICY, with a program of"
                f" {', '.join(programs)}, a ratio of {', '.join(ratios)}, and a policy of"
                f" {', '.join(short)}"
            )
        chosen += [
            (program, r, label)
            for r in ([ratio] if ratio else ratios)
            for label in ([short[policy]] if policy else policies)
            if policy or label != TUNED or (program, r) in TUNED_CASES
        ]
    runs = [
        HeldOutRun(seed, *case)
        for seed in range(1, seeds + 1)
        for case in dict.fromkeys(chosen)
        if seed == 1 or case[2] not in _ONCE
    ]
    return sorted(runs, key=lambda run: (run.seed, programs.index(run.program)))


@cache
def _recording_digest(program: str) -> str:
    """Return what a program's recording depends on; it is the same while a command runs."""
    return program_digest(program)


class HeldOutRuns:
    """Makes runs on one machine, or returns them from the journal."""

    def __init__(
        self,
        preset: Preset,
        networks: HeldOutNetworks,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._preset, self._networks, self._journal, self._say = preset, networks, journal, say
        self._stream: tuple[str, MissStream] | None = None
        self._values: MissValues | None = None

    def known(self, run: HeldOutRun) -> Mapping[str, Any] | None:
        """Return the result of a run: ``seconds`` and ``moved_mib``; None if it is to be made."""
        key = self._key(run)
        found: Mapping[str, Any] | None = None if key is None else self._journal.get(key)
        return found

    def make(self, run: HeldOutRun) -> Mapping[str, Any]:
        """Return the result of a run; makes it if it is not known."""
        found = self.known(run)
        if found is not None:
            return found
        stream = self._recording(run.program)
        pages = fast_pages(stream, run.ratio)
        if run.policy in BOUNDS:
            self._values = self._values or MissValues(stream, self._preset)
            known = bounds(stream, self._preset, pages, SETTINGS, self._values)
            made = {replace(run, policy=name): bound.run for name, bound in known.items()}
        else:
            settings = charged(run.seed, free=run.policy == FIRST_TOUCH)
            policy = self._policy(run, stream)
            made = {run: simulate(stream, self._preset, pages, policy, settings)}
        for each, done in made.items():
            key = self._key(each)
            assert key is not None
            result = {"seconds": done.runtime_s, "moved_mib": done.moved_bytes / (1 << 20)}
            self._journal.put(key, result)
        return self.make(run)

    def _recording(self, program: str) -> MissStream:
        if self._stream is None or self._stream[0] != program:
            self._stream = self._values = None  # one at a time: they are large
            self._stream = program, recorded(program, SUITE, self._say).stream
        return self._stream[1]

    def _policy(self, run: HeldOutRun, stream: MissStream) -> Policy:
        """Return the policy of a run, the learned one with a network that has not seen it."""
        if run.policy in (FIRST_TOUCH, NONE):
            return registry.make(NONE)
        if run.policy in LEARNED:
            weights = str(self._networks.network(run.program))
            headroom = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
            given = {**headroom, "weights": weights}
            return registry.guarded(GUARDED, given, run.policy == GUARDED)
        if run.policy == TUNED:
            found = self._tuned(run, stream)
            return make_policy(found.policy, **found.values)
        return make_policy(run.policy)

    def _tuned(self, run: HeldOutRun, stream: MissStream) -> TunedRule:
        """Return the rule that is the best for a case, the same for all seeds."""
        pages = fast_pages(stream, run.ratio)
        return tuned_rule(stream, self._preset, pages, self._journal, self._say)

    def _key(self, run: HeldOutRun) -> str | None:
        """Return what a run depends on; None where its network is still to be fitted."""
        weights = b""
        if run.policy in LEARNED:
            path = self._networks.path(run.program)
            if not path.exists():
                return None
            weights = path.read_bytes()
        return digest(
            closure_digest(*_MODULES[run.policy]),
            _recording_digest(run.program),
            self._preset.model_dump_json(),
            charged(run.seed, free=run.policy == FIRST_TOUCH),
            hashlib.sha256(weights).hexdigest(),
            (run.policy, run.ratio),
        )
