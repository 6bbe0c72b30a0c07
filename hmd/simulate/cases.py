# SPDX-License-Identifier: MIT
"""Simulation cases: recorded programs, each with a size of the fast node, under one policy.

``record_misses`` records a command in the emulated machine: it runs twice, once to fill the page
cache with its files, and must behave alike in both runs. Runtimes of cases are simulated once
however often they are asked for; a simulation takes 0.1 to 0.2 µs per miss. Several run at a time,
since the native model releases Python's lock, or on a cluster; results do not depend on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hmd.base.errors import HmdError, TargetError
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissStream
from hmd.emulate.recordings.recorder import ALL_SLOW, RECORDED_ON, guest, run_in, widest_core
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command
from hmd.policy import registry
from hmd.policy.settings import Value
from hmd.simulate.executors import Executor, Journal, code_digest, digest, stream_digest
from hmd.simulate.simulation import SimulationSettings, baselines, simulate

Values = Mapping[str, Value]
"""Settings of a policy, by field of its dataclass."""


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """A program and a fast node of ``fast_pages``; ``trace`` and ``fast`` name the two."""

    trace: str
    fast: str
    fast_pages: int
    stream: MissStream

    def __str__(self) -> str:
        return f"{self.trace} {self.fast}"


def read_program(path: Path) -> MissStream:
    """Read recorded misses that can be simulated; HmdError, which names the file, for others."""
    stream = MissStream.read(path)
    if stream.cpus > 1:
        raise HmdError(
            f"{path} is a recording of {stream.cpus} CPUs, which cannot be simulated tick by tick:"
            " record the program with one thread"
        )
    return stream


def _simulated_s(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    policy: str,
    values: Values,
    settings: SimulationSettings,
) -> float:
    """Simulate a program under a policy; return its runtime in seconds."""
    made = registry.create(policy, values)
    return simulate(stream, preset, fast_pages, made, settings).runtime_s


class CaseRuntimes:
    """Runtimes of cases under a policy; a context manager, which cancels waiting simulations.

    ``say`` is called with the name of what is being simulated.
    """

    def __init__(
        self,
        policy: str,
        preset: Preset,
        settings: SimulationSettings,
        *,
        jobs: int = 1,
        executor: Executor | None = None,
        journal: Journal | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Run simulations by an ``executor`` or, without one, in ``jobs`` threads."""
        self._policy, self._preset, self._settings = policy, preset, settings
        self._journal = journal or Journal()
        self._say = say or (lambda _: None)
        self._executor = executor or Executor(jobs)
        self._pool = (
            ThreadPoolExecutor(self._executor.threads) if self._executor.threads > 1 else None
        )
        self._streams: dict[int, tuple[MissStream, str]] = {}
        file = registry.FILES.get(policy)
        code = file.read_bytes() if file else b""
        self._common = digest(code_digest(), code, preset.model_dump_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for running simulations, cancel waiting ones."""
        self._executor.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def fixed(self, case: SimulationCase) -> dict[str, float]:
        """Return the runtimes of the static placements, by name, in seconds."""
        key = digest(self._common, self._stream(case), case.fast_pages)
        found = self._journal.get(key)
        if found is None:
            self._say(f"{case}, fixed placements")
            found = self._executor.run(baselines, case.stream, self._preset, case.fast_pages)
            self._journal.put(key, found)
        return {str(name): float(seconds) for name, seconds in found.items()}

    def runtimes(
        self, cases: Sequence[SimulationCase], values: Values, seed: int | None = None
    ) -> Generator[float]:
        """Yield each case's runtime in seconds, in order; later cases are simulated on demand.

        ``seed`` replaces the seed of sampling in the settings.
        """
        settings = self._settings
        if seed is not None:
            settings = replace(settings, sampling=replace(settings.sampling, seed=seed))
        if self._pool is None:
            for case in cases:
                yield self._runtime_s(case, values, settings)
            return
        waiting = [self._pool.submit(self._runtime_s, case, values, settings) for case in cases]
        try:
            for each in waiting:
                yield each.result()
        finally:
            for each in waiting:
                each.cancel()

    def _runtime_s(
        self, case: SimulationCase, values: Values, settings: SimulationSettings
    ) -> float:
        key = digest(
            self._common,
            self._stream(case),
            case.fast_pages,
            self._policy,
            sorted(values.items()),
            settings,
        )
        found = self._journal.get(key)
        if found is None:
            self._say(str(case))
            found = self._executor.run(
                _simulated_s, case.stream, self._preset, case.fast_pages, self._policy, values,
                settings,
            )  # fmt: skip
            self._journal.put(key, found)
        return float(found)

    def _stream(self, case: SimulationCase) -> str:
        known = self._streams.get(id(case.stream))
        if known is None:  # the stream is stored with its digest, so that its id is not reused
            known = self._streams[id(case.stream)] = case.stream, stream_digest(case.stream)
        return known[1]


def record_misses(command: Sequence[str]) -> MissStream:
    """Return the misses of a command, which must exit with 0; takes a minute or more.

    Raises TargetError where there is no such command, HmdError where it fails.
    """
    program = shutil.which(command[0])
    if program is None:
        raise TargetError(f"there is no command {command[0]}: check the name, or give its path")
    argv = (str(Path(program).absolute()), *command[1:])
    ready = Command(argv, BASE_ENVIRONMENT, expect="", folder=str(Path.cwd()))
    with guest(widest_core(load(RECORDED_ON)), ready) as machine:
        recording = run_in(machine, ready, ALL_SLOW).recording
    if not len(recording.stream):
        raise HmdError(f"{command[0]} had no cache miss: give it more memory to work on")
    return recording.stream
