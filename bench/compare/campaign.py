"""A campaign: runs all cases without a known result; a failing case does not stop the others.

Each kind of service has its own boots, in which systems follow one another and each runs its
cases. A result is stored in a file under the digest of its inputs, so that an interrupted campaign
continues where it stopped; a committed result of the same digest is reused as well.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import hmd
from bench.compare import guest_daemon, guest_damon
from bench.compare.case_result import CaseResult
from bench.compare.comparison_case import ComparisonCase
from bench.compare.comparison_trial import ComparisonTrial, run_trial
from bench.compare.discovery import Discovery
from bench.compare.footprint import footprint_bytes
from bench.compare.guest_daemon import DaemonProgress, GuestDaemon
from bench.compare.systems import BootService, System, system_named
from bench.compare.testbed import (
    CACHES,
    DILATION,
    FAST_NODE_BYTES,
    FLUSH_US,
    MEASURE,
    PRESET,
    Testbed,
    stage,
)
from bench.suite.ground_truth import program_digest
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.emulate.guest_agent import GuestError
from hmd.emulate.guest_command import Command
from hmd.emulate.kernel_cache import warm_kernels
from hmd.emulate.preset import load
from hmd.errors import HmdError

Say = Callable[[str], None]

_DAEMON_ROOMS = ("machine", "sample", "heat", "decide", "migrate", "daemon", "native")
_SETTING = (MEASURE, FAST_NODE_BYTES, FLUSH_US, CACHES)
_BOOTS = 3  # boots per service, where the machine ends early


@dataclass(slots=True)
class CampaignResults:
    """Results by case, and the errors of failed cases."""

    results: dict[ComparisonCase, CaseResult] = field(default_factory=dict)
    failed: dict[ComparisonCase, str] = field(default_factory=dict)

    @property
    def trials(self) -> dict[ComparisonCase, ComparisonTrial]:
        """Trials by case."""
        return {case: result.trial for case, result in self.results.items()}


def run_cases(
    cases: Sequence[ComparisonCase],
    inputs: Path,
    folder: Path,
    say: Say,
    *,
    dilation: float = DILATION,
    known: Iterable[CaseResult] = (),
    commit: str = "",
    fresh: bool = False,
    run: bool = True,
) -> CampaignResults:
    """Run the cases without a known result; ``inputs`` holds inputs, ``folder`` stores results.

    ``known`` results are reused where their digest is that of the case; ``commit`` is stored with
    new results. ``fresh`` deletes stored results of these cases. Without ``run`` no case is run.
    Raises ConfigError for an unknown program or system; the outcome reports other errors.
    """
    campaign = _Campaign(cases, inputs, folder, say, dilation, commit)
    if fresh:
        campaign.forget()
    campaign.take_known(known)
    for service in BootService if run else ():
        campaign.run(service)
    return campaign.outcomes


class _Campaign:
    def __init__(
        self,
        cases: Sequence[ComparisonCase],
        inputs: Path,
        folder: Path,
        say: Say,
        dilation: float,
        commit: str,
    ):
        self._inputs, self._folder, self._say, self._dilation = inputs, folder, say, dilation
        self._commit = commit
        self._systems = {case: system_named(case.system) for case in cases}
        self._programs = {c.program: load_program(c.program) for c in cases}
        self._commands: dict[str, Command] = {}
        self._digests = {case: self._digest(case) for case in cases}
        self.outcomes = CampaignResults()
        self._total = len(cases)

    def forget(self) -> None:
        """Delete the stored results of the cases."""
        for case in self._digests:
            self._path(case).unlink(missing_ok=True)

    def take_known(self, elsewhere: Iterable[CaseResult]) -> None:
        """Load stored results, and reuse ``elsewhere`` for the cases without one."""
        by_digest = {result.digest: result for result in elsewhere}
        for case, digest in self._digests.items():
            if self._path(case).exists():
                kept = json.loads(self._path(case).read_text())
                result = CaseResult(ComparisonTrial(**kept["trial"]), digest, kept["commit"])
                self.outcomes.results[case] = result
            elif digest in by_digest:
                self.outcomes.results[case] = by_digest[digest]
        self._total = len(self._left(set(BootService)))

    def run(self, service: BootService) -> None:
        """Run the cases of one service in as few boots as possible.

        DAMON has one boot per case: memory that it promoted stays on the fast node, where the next
        program could not have it.
        """
        tries = _BOOTS
        while left := self._left({service}):
            together = left[:1] if service is BootService.DAMON else left
            try:
                self._boot(service, together)
            except GuestError as error:
                tries -= 1
                self._say(f"{error}: booting it again")
                if not tries:
                    self._fail(left, GuestError("the emulated machine ended in every boot"))
            except (HmdError, subprocess.SubprocessError) as error:
                self._fail(together, error)

    def _boot(self, service: BootService, cases: Sequence[ComparisonCase]) -> None:
        if service is BootService.HMD:
            warm_kernels()
        names = sorted({case.program for case in cases})
        self._say(f"booting for {', '.join(names)} with service {service}")
        commands = [self._command(name) for name in names]
        systems = [system_named(name) for name in dict.fromkeys(case.system for case in cases)]
        with (
            stage(commands, self._folder / "share", self._dilation) as ready,
            _service(service, ready, systems) as running,
        ):
            if running is not None:
                self._warm_up(ready, cases[0])
            for system in systems:
                with ready.having(system.knobs):
                    if running is not None:
                        running.use(system.policy)
                    for case in cases:
                        if case.system == system.name:
                            self._try(ready, case, system, running)

    def _warm_up(self, ready: Testbed, case: ComparisonCase) -> None:
        """Run a program once unmeasured: QEMU translates the daemon's code on its first run."""
        self._say(f"warming up with {case.program}")
        try:
            self._trial(ready, case, system_named(case.system))
        except GuestError:
            raise
        except (HmdError, subprocess.SubprocessError) as error:
            self._say(f"warming up failed: {error}")  # the case itself reports the error

    def _try(
        self, ready: Testbed, case: ComparisonCase, system: System, running: GuestDaemon | None
    ) -> None:
        done = self._total - len(self._left(set(BootService)))
        try:
            if running is None:
                trial = self._trial(ready, case, system)
            else:
                before, discovery = running.progress(), Discovery(running)
                trial = self._trial(ready, case, system, discovery)
                trial = _with_pace(trial, before, running.progress(), discovery.seconds)
        except GuestError:
            raise
        except (HmdError, subprocess.SubprocessError) as error:
            self._fail([case], error)
            return
        path = self._path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"case": asdict(case), "trial": asdict(trial), "commit": self._commit}
        path.write_text(json.dumps(kept))
        self.outcomes.results[case] = CaseResult(trial, self._digests[case], self._commit)
        self._say(
            f"{case} ({done + 1} of {self._total}): {trial.modelled_seconds:.3f} s modelled, "
            f"{trial.guest_seconds:.0f} s in the guest, {trial.migrated_bytes >> 20} MiB moved, "
            f"{trial.fast_share:.0%} of misses fast in {trial.fast_bytes / 2**20:.2f} "
            f"{trial.gained_bytes / 2**20:+.2f} MiB"
        )

    def _trial(
        self,
        ready: Testbed,
        case: ComparisonCase,
        system: System,
        discovery: Discovery | None = None,
    ) -> ComparisonTrial:
        fast = case.fast_bytes(self._footprint(case.program))
        service = guest_damon.running_damon(ready) if system.service is BootService.DAMON else None
        return run_trial(
            ready,
            self._command(case.program),
            system.start,
            fast,
            service=service,
            watch=discovery,
        )

    def _fail(self, cases: Iterable[ComparisonCase], error: Exception) -> None:
        for case in cases:
            line = " ".join(str(error).split())
            self.outcomes.failed[case] = line
            self._say(f"{case} failed: {line}")

    def _left(self, services: set[BootService]) -> list[ComparisonCase]:
        """Return the cases of these services without a result or a failure."""
        told = self.outcomes.results.keys() | self.outcomes.failed.keys()
        return [c for c, s in self._systems.items() if c not in told and s.service in services]

    def _command(self, name: str) -> Command:
        if name not in self._commands:
            self._commands[name] = prepare(self._programs[name], self._inputs)
        return self._commands[name]

    def _footprint(self, name: str) -> int:
        digest = program_digest(name)
        return footprint_bytes(name, digest, lambda: self._command(name), self._folder)

    def _path(self, case: ComparisonCase) -> Path:
        name = f"{case}-{self._digests[case]}.json".replace(":", "-")
        return self._folder / "cases" / name

    def _digest(self, case: ComparisonCase) -> str:
        """Return a digest of all that a result depends on, except the speed of the host."""
        system = self._systems[case]
        parts = [program_digest(case.program), load(PRESET).model_dump_json(), case.ratio]
        parts += [repr(system), repr((self._dilation, *_SETTING))]
        if system.service is BootService.DAMON:
            parts.append(repr((guest_damon.scheme_words(), guest_damon.SETTLE_S)))
        if system.service is BootService.HMD:
            parts += [repr(guest_daemon.configuration(system.policy)), _daemon_digest()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextmanager
def _service(
    service: BootService, ready: Testbed, systems: Sequence[System]
) -> Iterator[GuestDaemon | None]:
    """Run the service of a boot; yields the daemon if the service is hmd."""
    if service is BootService.HMD:
        with guest_daemon.running_daemon(ready, systems[0].policy) as running:
            yield running
    else:
        yield None


def _with_pace(
    trial: ComparisonTrial, before: DaemonProgress, after: DaemonProgress, found_s: float
) -> ComparisonTrial:
    """Return the trial with the daemon's ticks per second and discovery time."""
    return replace(
        trial,
        tick_seconds=(after.uptime_s - before.uptime_s) / max(1, after.ticks - before.ticks),
        unseen_share=min(1.0, found_s / trial.guest_seconds),
    )


def _daemon_digest() -> str:
    root = Path(hmd.__file__).parent
    digest = hashlib.sha256()
    for room in _DAEMON_ROOMS:
        for path in sorted([*(root / room).glob("*.py"), *(root / room).glob("*.[ch]")]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
