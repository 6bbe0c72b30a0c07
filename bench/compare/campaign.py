# SPDX-License-Identifier: MIT
"""A campaign: runs all cases without a known result; a failing case does not stop the others.

Each kind of service has its own boots, in which systems follow one another and each runs its
cases. A case of a system whose runs scatter runs several times, each time in another boot. Every
run is stored in a file under the digest of its inputs, so that an interrupted campaign continues
where it stopped; a committed result of the same digest is reused as well.

The digest of a case: all that its result depends on, except the speed of the host.

Comments of C and Python sources of the daemon count; those of programs do not.

Trials of cases in files, so that an interrupted campaign continues where it stopped.

One file per run, named after the case, the digest of all that it depends on, and the number of the
run. The files of another digest stay, and only ``latest`` reads them.

The time until the daemon in the guest finds a program, from its log.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import hmd
from bench.compare import guest_services
from bench.compare.comparison_case import (
    CaseResult,
    ComparisonCase,
    ComparisonTrial,
    compared_digest,
    compared_program,
    run_trial,
    trial_of,
)
from bench.compare.guest_services import NO_SETTINGS, DaemonProgress, GuestDaemon
from bench.compare.systems import RUNS, BootService, System, system_named
from bench.compare.testbed import (
    CACHES,
    DILATION,
    FAST_NODE_BYTES,
    FLUSH_US,
    MEASURE,
    PRESET,
    SERVICE_CACHE_BYTES,
    Testbed,
    footprint_bytes,
    stage,
)
from bench.suite.inputs import prepare
from hmd.base.errors import HmdError
from hmd.emulate.preset import load
from hmd.emulate.vm.guest import Command, GuestError
from hmd.emulate.vm.images import warm_kernels

_DAEMON_ROOMS = (
    *("base", "linux", "sample", "residency", "heat", "policy", "migrate"),
    *("tick", "config", "control", "metrics", "daemon", "native"),
)
_SETTING = (MEASURE, FAST_NODE_BYTES, FLUSH_US, CACHES, SERVICE_CACHE_BYTES)

_FOLLOWING = ": following pid "
_LOOK_S = 0.02
Say = Callable[[str], None]
_BOOTS = 3  # boots per service, where the machine ends early


def case_digest(
    case: ComparisonCase,
    dilation: float,
    settings: Mapping[str, Any] = guest_services.NO_SETTINGS,
) -> str:
    """Return the digest of a case; raises ConfigError for an unknown program or system.

    ``settings`` are those of hmd's policy that differ from its defaults.
    """
    system = system_named(case.system)
    parts = [compared_digest(case.program), load(PRESET).model_dump_json(), case.ratio]
    parts += [repr(system), repr((dilation, *_SETTING))]
    if system.service is BootService.DAMON:
        parts.append(repr((guest_services.scheme_words(), guest_services.SETTLE_S)))
    if system.service is BootService.HMD:
        configured = guest_services.configuration(system.policy, settings=settings)
        parts += [repr(configured), _daemon_digest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _daemon_digest() -> str:
    root = Path(hmd.__file__).parent
    digest = hashlib.sha256()
    for room in _DAEMON_ROOMS:
        for path in sorted([*(root / room).rglob("*.py"), *(root / room).glob("*.[ch]")]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class TrialStore:
    """The files of trials in a folder."""

    folder: Path

    def read(self, case: ComparisonCase, digest: str) -> CaseResult | None:
        """Return the stored runs of a case; None without any."""
        kept = [json.loads(path.read_text()) for path in self._paths(case, digest)]
        if not kept:
            return None
        trials = tuple(trial_of(each["trial"]) for each in kept)
        return CaseResult(trials, digest, str(kept[-1]["commit"]))

    def latest(self, case: ComparisonCase) -> CaseResult | None:
        """Return the stored runs of a case that have the digest of the newest; None without any."""
        before, after = self._path(case, "*", 0).name.split("*")
        found = {
            path.name.removeprefix(before).removesuffix(after): path.stat().st_mtime_ns
            for path in self.folder.glob(f"{before}*{after}")
        }
        # Names of other systems may begin like this one's, but a digest has no hyphen.
        digests = [each for each in found if "-" not in each]
        return self.read(case, max(digests, key=found.__getitem__)) if digests else None

    def add(self, case: ComparisonCase, result: CaseResult) -> None:
        """Store the last run of a result, whose other runs are stored."""
        path = self._path(case, result.digest, len(result.trials) - 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"case": asdict(case), "trial": asdict(result.trials[-1]), "commit": result.commit}
        path.write_text(json.dumps(kept))

    def forget(self, case: ComparisonCase, digest: str) -> None:
        """Delete the runs of a case."""
        for path in self._paths(case, digest):
            path.unlink()

    def _paths(self, case: ComparisonCase, digest: str) -> list[Path]:
        paths = (self._path(case, digest, run) for run in count())
        return list(takewhile(Path.exists, paths))

    def _path(self, case: ComparisonCase, digest: str, run: int) -> Path:
        return self.folder / f"{case}-{digest}-{run}.json".replace(":", "-")


class Discovery:
    """A context around a run: ``seconds`` by the guest's clock until the daemon followed it.

    The duration of the run if the daemon never did.
    """

    def __init__(self, daemon: GuestDaemon) -> None:
        """Note the current end of the daemon's log."""
        self._daemon = daemon
        self._over = threading.Event()
        self.seconds = 0.0

    def __enter__(self) -> Discovery:
        """Start to watch the log."""
        self._began_s, self._before = time.monotonic(), self._daemon.count_in_log(_FOLLOWING)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        found = False
        while not (found or self._over.wait(_LOOK_S)):
            found = self._daemon.count_in_log(_FOLLOWING) > self._before
        self.seconds = time.monotonic() - self._began_s


@dataclass(slots=True)
class CampaignResults:
    """Results by case, also of cases that lack some of their runs, and errors of failed cases."""

    results: dict[ComparisonCase, CaseResult] = field(default_factory=dict)
    failed: dict[ComparisonCase, str] = field(default_factory=dict)

    @property
    def trials(self) -> dict[ComparisonCase, ComparisonTrial]:
        """The median run of each case."""
        return {case: result.trial for case, result in self.results.items()}


def run_cases(
    cases: Sequence[ComparisonCase],
    inputs: Path,
    folder: Path,
    say: Say,
    *,
    dilation: float = DILATION,
    known: Iterable[CaseResult] = (),
    of_any_code: Mapping[ComparisonCase, CaseResult] | None = None,
    commit: str = "",
    fresh: bool = False,
    run: bool = True,
    most_runs: int = RUNS,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> CampaignResults:
    """Run the cases without a known result; ``inputs`` holds inputs, ``folder`` stores results.

    ``known`` results are reused where their digest is that of the case. With ``of_any_code``, a
    case without such a result has its newest stored one, or else that of ``of_any_code``, whatever
    they were measured with. ``commit`` is stored with new results. ``fresh`` deletes stored results
    of these cases. Without ``run`` no case is run. ``most_runs`` limits the runs of each case.
    ``settings`` are those of hmd's policy that differ from its defaults, by program.
    Raises ConfigError for an unknown program or system; the outcome reports other errors.
    """
    campaign = _Campaign(cases, inputs, folder, say, dilation, commit, most_runs, settings or {})
    if fresh:
        campaign.forget()
    campaign.take_known(known)
    if of_any_code is not None:
        campaign.take_latest(of_any_code)
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
        most_runs: int,
        settings: Mapping[str, Mapping[str, Any]],
    ):
        self._inputs, self._folder, self._say, self._dilation = inputs, folder, say, dilation
        self._commit = commit
        self._systems = {case: system_named(case.system) for case in cases}
        self._wanted = {c: min(most_runs, each.runs) for c, each in self._systems.items()}
        self._store = TrialStore(folder / "cases")
        self._programs = {c.program: compared_program(c.program) for c in cases}
        self._commands: dict[str, Command] = {}
        self._settings = {case: settings.get(case.program, NO_SETTINGS) for case in cases}
        self._digests = {c: case_digest(c, dilation, self._settings[c]) for c in cases}
        self.outcomes = CampaignResults()
        self._total = len(cases)

    def forget(self) -> None:
        """Delete the stored results of the cases."""
        for case, digest in self._digests.items():
            self._store.forget(case, digest)

    def take_known(self, elsewhere: Iterable[CaseResult]) -> None:
        """Load stored results, and reuse ``elsewhere`` for the cases without one."""
        by_digest = {result.digest: result for result in elsewhere}
        for case, digest in self._digests.items():
            result = self._store.read(case, digest) or by_digest.get(digest)
            if result is not None:
                self.outcomes.results[case] = result
        self._total = self._runs_left()

    def take_latest(self, elsewhere: Mapping[ComparisonCase, CaseResult]) -> None:
        """Give cases without a result the newest stored one, or the one of ``elsewhere``."""
        for case in self._digests.keys() - self.outcomes.results.keys():
            result = self._store.latest(case) or elsewhere.get(case)
            if result is not None:
                self.outcomes.results[case] = result
        self._total = self._runs_left()

    def run(self, service: BootService) -> None:
        """Run the cases of one service in as few boots as possible, a boot for each of their runs.

        Programs of more threads have boots of their own, with more CPUs.
        DAMON has one boot per run: memory that it promoted stays on the fast node, where the next
        program could not have it.
        """
        tries = _BOOTS
        while left := self._left(service):
            first, threads = min((self._ran(case), self._threads(case)) for case in left)
            together = [
                case for case in left if (self._ran(case), self._threads(case)) == (first, threads)
            ]
            if service is BootService.DAMON:
                together = together[:1]
            together = self._prepared(together)
            if not together:
                continue
            try:
                self._boot(service, together)
            except GuestError as error:
                tries -= 1
                self._say(f"{error}: booting it again")
                if not tries:
                    self._fail(left, GuestError("the emulated machine ended in every boot"))
            except (HmdError, subprocess.SubprocessError) as error:
                self._fail(together, error)

    def _prepared(self, cases: Sequence[ComparisonCase]) -> list[ComparisonCase]:
        """Return the cases whose programs can run here; the others fail."""
        ready = []
        for case in cases:
            try:
                self._command(case.program)
            except (HmdError, subprocess.SubprocessError) as error:
                self._fail([case], error)
            else:
                ready.append(case)
        return ready

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
                self._warm_up(ready, cases[0], running)
            for system in systems:
                with ready.having(system.knobs):
                    for case in cases:
                        if case.system == system.name:
                            self._try(ready, case, system, running)

    def _warm_up(self, ready: Testbed, case: ComparisonCase, running: GuestDaemon) -> None:
        """Run a program once unmeasured: QEMU translates the daemon's code on its first run."""
        self._say(f"warming up with {case.program}")
        try:
            self._trial(ready, case, system_named(case.system), running)
        except GuestError:
            raise
        except (HmdError, subprocess.SubprocessError) as error:
            self._say(f"warming up failed: {error}")  # the case itself reports the error

    def _try(
        self, ready: Testbed, case: ComparisonCase, system: System, running: GuestDaemon | None
    ) -> None:
        try:
            if running is None:
                trial = self._trial(ready, case, system)
            else:
                running.use(system.policy, self._settings[case])
                before, discovery = running.progress(), Discovery(running)
                trial = self._trial(ready, case, system, running, discovery)
                trial = _with_pace(trial, before, running.progress(), discovery.seconds)
        except GuestError:
            raise
        except (HmdError, subprocess.SubprocessError) as error:
            self._fail([case], error)
            return
        before_it = self.outcomes.results.get(case)
        trials = (*(before_it.trials if before_it else ()), trial)
        self.outcomes.results[case] = CaseResult(trials, self._digests[case], self._commit)
        self._store.add(case, self.outcomes.results[case])
        known = trial.asleep_seconds is not None
        slept = f" ({trial.asleep_seconds:.3f} asleep)" if known else ""
        self._say(
            f"{case} ({self._total - self._runs_left()} of {self._total}): "
            f"{trial.modelled_seconds:.3f} s modelled{slept}, "
            f"{trial.guest_seconds:.0f} s in the guest "
            f"({trial.host_wait_seconds:.0f} waiting), {trial.migrated_bytes >> 20} MiB moved, "
            f"{trial.fast_share:.0%} of misses fast in {trial.fast_bytes / 2**20:.2f} "
            f"{trial.gained_bytes / 2**20:+.2f} MiB"
            + (f", {trial.samples} samples, period {trial.period}" if trial.samples else "")
        )

    def _trial(
        self,
        ready: Testbed,
        case: ComparisonCase,
        system: System,
        running: GuestDaemon | None = None,
        discovery: Discovery | None = None,
    ) -> ComparisonTrial:
        fast = case.fast_bytes(self._footprint(case.program))
        service = running.moving() if running is not None else None
        if system.service is BootService.DAMON:
            service = guest_services.running_damon(ready)
        return run_trial(
            ready,
            self._command(case.program),
            system.start,
            fast,
            swept=system.swept,
            service=service,
            watch=discovery,
        )

    def _fail(self, cases: Iterable[ComparisonCase], error: Exception) -> None:
        for case in cases:
            line = " ".join(str(error).split())
            self.outcomes.failed[case] = line
            self._say(f"{case} failed: {line}")

    def _left(self, service: BootService) -> list[ComparisonCase]:
        """Return the cases of a service that lack a run and have not failed."""
        return [
            case
            for case, system in self._systems.items()
            if system.service is service
            and case not in self.outcomes.failed
            and self._ran(case) < self._wanted[case]
        ]

    def _runs_left(self) -> int:
        left = (case for service in BootService for case in self._left(service))
        return sum(self._wanted[case] - self._ran(case) for case in left)

    def _ran(self, case: ComparisonCase) -> int:
        """Return the number of runs that a case has."""
        known = self.outcomes.results.get(case)
        return len(known.trials) if known else 0

    def _command(self, name: str) -> Command:
        if name not in self._commands:
            self._commands[name] = prepare(self._programs[name], self._inputs)
        return self._commands[name]

    def _threads(self, case: ComparisonCase) -> int:
        return self._programs[case.program].threads

    def _footprint(self, name: str) -> int:
        digest = compared_digest(name)
        return footprint_bytes(name, digest, lambda: self._command(name), self._folder)


@contextmanager
def _service(
    service: BootService, ready: Testbed, systems: Sequence[System]
) -> Iterator[GuestDaemon | None]:
    """Run the service of a boot; yields the daemon if the service is hmd."""
    if service is BootService.HMD:
        with guest_services.running_daemon(ready, systems[0].policy) as running:
            yield running
    else:
        yield None


def _with_pace(
    trial: ComparisonTrial, before: DaemonProgress, after: DaemonProgress, found_s: float
) -> ComparisonTrial:
    """Return the trial with the daemon's pace, samples and discovery time."""
    return replace(
        trial,
        tick_seconds=(after.uptime_s - before.uptime_s) / max(1, after.ticks - before.ticks),
        unseen_share=min(1.0, found_s / trial.guest_seconds),
        samples=after.samples - before.samples,
        period=after.period,
        daemon_cpu_seconds=after.cpu_s - before.cpu_s,
        daemon_bytes=after.resident_bytes,
    )
