"""A whole recording: of a program started for it, or of a running process."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from hmd.errors import MissingError, TargetError
from hmd.machine.clock import ClockKind
from hmd.machine.memory_policy import bind_memory
from hmd.machine.nodes.numa_nodes import read_topology
from hmd.machine.nodes.topology import Topology
from hmd.machine.personality import fix_addresses
from hmd.machine.process_id import identify
from hmd.sample.auto_select import SampleSettings
from hmd.trace.gated_launch import Launched, attach
from hmd.trace.metadata import describe
from hmd.trace.record_inputs import ClockPair, SourceRenewal, Sources, open_sources
from hmd.trace.recorder import Recorder, RecordSettings
from hmd.trace.trace import Ending
from hmd.trace.trace_writer import TraceWriter


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record and into which file; ``seconds`` None: until the program ends.

    ``sample`` has pairs by default: 'hmd estimate' finds in them which misses overlap. With a
    ``tier``, addresses are not randomised unless ``randomize`` is set, so that both runs have the
    same pages.
    """

    path: Path
    tier: Literal["fast", "slow"] | None = None
    seconds: float | None = None
    settings: RecordSettings = field(default_factory=RecordSettings)
    sample: SampleSettings = field(default_factory=partial(SampleSettings, pairs=True))
    randomize: bool = False


@dataclass(frozen=True, slots=True)
class RecordResult:
    """Result of a recording; ``exit_code`` is None if hmd did not start the program, or it runs on.

    ``runtime_ns`` is by the clock of that name, ``elapsed_ns`` by CLOCK_MONOTONIC. Of
    ``short_lived`` processes there are samples but no mappings.
    """

    runtime_ns: int
    clock: ClockKind
    elapsed_ns: int
    exit_code: int | None
    processes: int
    short_lived: int
    samples: int
    lost: int
    throttled: int
    period: int
    pair_period: int | None
    detail: str


def record_command(request: RecordRequest, command: Sequence[str]) -> RecordResult:
    """Start a command and record it to its end; after ``seconds`` the command runs on unrecorded.

    SIGINT and SIGTERM end the recording, so call this in the main thread; a terminal's Ctrl-C ends
    the command too. Raises TargetError if there is no such command, MissingError without a sampler
    or a second tier, HmdError if the file cannot be written.
    """
    topology = read_topology()
    prepare = _placement(request, topology)
    with (
        _open(request) as sources,
        contextlib.closing(Launched(command, prepare)) as child,
        TraceWriter(request.path, describe(command, topology, sources, request.tier)) as writer,
    ):
        process = identify(child.pid)
        if process is None:
            raise TargetError(f"{command[0]} was killed before it began: start it again")
        renewal = SourceRenewal(request.sample)
        recorder = Recorder(process, sources, writer, request.settings, renewal=renewal)
        recorder.begin()
        began = sources.now()
        recorder.since_ns = began.ns
        child.release()
        _run(recorder, child.exited, request.seconds)
        return _finish(recorder, writer, sources, began, child.wait(0))


def record_running(request: RecordRequest, pid: int) -> RecordResult:
    """Record a process that runs; raises as ``record_command``."""
    topology = read_topology()
    with (
        _open(request) as sources,
        contextlib.closing(attach(pid)) as running,
        TraceWriter(request.path, describe([], topology, sources, None)) as writer,
    ):
        process = identify(pid)
        if process is None:
            raise TargetError(f"process {pid} has just exited: name another")
        renewal = SourceRenewal(request.sample)
        recorder = Recorder(process, sources, writer, request.settings, renewal=renewal)
        recorder.begin()
        began = sources.now()
        _run(recorder, running.wait, request.seconds)
        return _finish(recorder, writer, sources, began, None)


@contextlib.contextmanager
def _open(request: RecordRequest) -> Iterator[Sources]:
    with contextlib.ExitStack() as opened:
        yield open_sources(request.sample, opened)


def _placement(request: RecordRequest, topology: Topology) -> Callable[[], None] | None:
    """Return a function that binds the calling process's memory to the tier; None without one."""
    if request.tier is None:
        return None
    if topology.one_tier:
        raise MissingError(
            "all memory of this machine is one tier, so that --tier has nothing to choose from "
            "('hmd topology'; 'hmd emulate -- hmd record ...' has two)"
        )
    nodes = topology.tiers[0 if request.tier == "fast" else -1]
    return partial(_place, nodes, randomize=request.randomize)


def _place(nodes: Sequence[int], *, randomize: bool) -> None:
    if not randomize:
        # If a container forbids it, 'hmd estimate' reports that addresses differ.
        with contextlib.suppress(OSError):
            fix_addresses()
    bind_memory(nodes)


def _run(recorder: Recorder, ended: Callable[[float], bool], seconds: float | None) -> None:
    """Record until the end, or a signal that asks for it."""
    until_s = float("inf") if seconds is None else time.monotonic() + seconds
    # An exception during a write would leave half a block.
    before = {
        number: signal.signal(number, lambda *_: recorder.stop())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        recorder.run(ended, until_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(
    recorder: Recorder, writer: TraceWriter, sources: Sources, began: ClockPair, code: int | None
) -> RecordResult:
    ended = recorder.ended or sources.now()
    runtime_ns = max(0, ended.ns - began.ns)  # the clocks of two CPUs may differ
    elapsed_ns = ended.monotonic_ns - began.monotonic_ns
    writer.end(Ending(began.ns, runtime_ns, code, elapsed_ns))
    sampler, losses = sources.sampler, sources.losses
    return RecordResult(
        runtime_ns,
        sources.clock.kind,
        elapsed_ns,
        code,
        recorder.processes,
        recorder.short_lived,
        writer.samples,
        losses.lost,
        losses.throttled,
        sampler.period,
        sampler.pair_period,
        sampler.detail,
    )
