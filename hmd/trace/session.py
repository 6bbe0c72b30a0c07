# SPDX-License-Identifier: MIT
"""A whole recording: of a program started for it, or of a running process.

A program that is started is forked and waits before its exec until the recorder is ready: its first
access is sampled, and its memory policy is set before it has any memory. A pidfd reports its exit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hmd import __version__
from hmd.base.errors import MissingError, TargetError, os_error
from hmd.base.units import PAGE_BYTES
from hmd.linux.emulator_memory import ClockKind
from hmd.linux.exit_watch import ProcessExit
from hmd.linux.own_process import bind_memory, fix_addresses
from hmd.linux.procfs import PROC, identify, read_live_stat
from hmd.linux.targets import TargetSpec, explain_empty
from hmd.linux.topology import Topology, read_topology
from hmd.sample.cpu_models import find_core, read_cpu_model
from hmd.sample.instruction_counts import InstructionCounter
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import SampleSettings
from hmd.trace.recorder import Recorder, RecordSettings, Sources
from hmd.trace.trace import Ending
from hmd.trace.writer import TraceWriter

_LATENCIES = ("read_latency_ns", "write_latency_ns")
_BANDWIDTHS = ("read_bandwidth_mbps", "write_bandwidth_mbps")


class Launched:
    """A child held before its exec; ``release`` lets it go.

    ``prepare`` runs in the child before it waits, to set a memory policy for example; ``release``
    reports an OSError of it.
    """

    def __init__(self, command: Sequence[str], prepare: Callable[[], None] | None = None) -> None:
        self.command = tuple(command)
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        gate_read, self._gate = os.pipe()
        self._failed, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(gate_read, failed_write, prepare)
        os.close(gate_read)
        os.close(failed_write)
        self._exit = ProcessExit(self.pid)

    def _child(self, gate_read: int, failed_write: int, prepare: Callable[[], None] | None) -> None:
        """Wait for the recorder, then become the program; sends errno to the parent on failure."""
        try:
            os.close(self._gate)
            if prepare is not None:
                prepare()
            # The pipe closes without a byte if the recorder dies.
            if os.read(gate_read, 1):
                # As Popen does: Python ignores these, and an ignored signal survives exec.
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(self.command[0], self.command)
        except OSError as error:
            os.write(failed_write, str(error.errno).encode())
        finally:
            os._exit(127)

    def release(self) -> None:
        """Let the program start; raises TargetError if there is no such program."""
        with contextlib.suppress(BrokenPipeError):  # it could not be prepared, or was killed
            os.write(self._gate, b"g")
        os.close(self._gate)
        self._gate = -1
        failure = os.read(self._failed, 16)  # ends when exec closes it
        if failure:
            self._reap()
            error = OSError(int(failure), os.strerror(int(failure)))
            line = f"cannot run {self.command[0]}: {error.strerror}"
            raise os_error(error, line, TargetError)

    def exited(self, timeout_s: float) -> bool:
        """Return whether it has ended, after waiting up to ``timeout_s``.

        Its entry in /proc stays until ``wait``.
        """
        return self._status is not None or self._exit.wait(timeout_s)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code (128 + N after signal N) once it has ended, else None."""
        if self._status is None and self.exited(timeout_s):
            self._reap()
        return self._status

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self._status is None:
            signal.pidfd_send_signal(self._exit.pidfd, signal.SIGKILL)
            self._reap()

    def close(self) -> None:
        """Kill it if it still waits for its release, and free descriptors."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
            self._reap()
        self._exit.close()
        if self._failed >= 0:
            os.close(self._failed)
            self._failed = -1

    def _reap(self) -> None:
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._status = code if code >= 0 else 128 - code


def attach(pid: int) -> ProcessExit:
    """Return the exit of a running process; raises TargetError if there is none."""
    try:
        return ProcessExit(pid)
    except ProcessLookupError:
        raise TargetError(f"no process {pid}: 'ps -e' lists those that run") from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise TargetError(f"{pid} is a thread, not a process: name its process") from None
        raise os_error(error, f"cannot watch process {pid}: {error.strerror}") from None


def describe(
    command: Sequence[str],
    topology: Topology,
    sources: Sources,
    tier: str | None,
    proc: Path = PROC,
) -> dict[str, Any]:
    """Return the metadata, the words of a trace's first block; ``begin_ns`` is now."""
    sampler, clock, counter = sources.sampler, sources.clock, sources.counter
    # The emulated machine's guest sees QEMU's CPU, not the core that is modelled.
    core = None if sampler.capabilities.modelled_clock else find_core(read_cpu_model(proc))
    ring = sampler if isinstance(sampler, RingSampler) else None
    return {
        "hmd": __version__,
        "command": list(command),
        "tier": tier,
        "clock": clock.kind,
        "begin_ns": clock.now_ns(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "page_bytes": PAGE_BYTES,
        "nodes": [
            {
                "id": node.id,
                "tier": node.tier,
                "total_bytes": node.total_bytes,
                "cpus": list(node.cpus),
                **{name: getattr(node, name) for name in (*_LATENCIES, *_BANDWIDTHS)},
            }
            for node in topology.nodes
        ],
        "tiers": [_tier(topology, rank) for rank in range(len(topology.tiers))],
        "tier_source": topology.tier_source,
        "instructions": counter.source,
        "instructions_detail": counter.detail,
        "sampler": sampler.name,
        "detail": sampler.detail,
        "period": sampler.period,
        "load_factor": ring.load_factor if ring else 1.0,
        "record_ns": round(ring.control.record_s * 1e9) if ring else 0,
        "pairs": sampler.pair_period is not None,
        "pair_period": sampler.pair_period,
        "reorder_window": core.reorder_window if core else None,
        "fill_buffers": core.fill_buffers if core else None,
    }


def _tier(topology: Topology, rank: int) -> dict[str, Any]:
    """Return a tier's speed by firmware (HMAT: idle latency, peak bandwidth), None if not given.

    Latencies are the mean of its nodes' for the CPUs nearest to each, bandwidths their sum.
    """
    nodes = [node for node in topology.nodes if node.id in topology.tiers[rank]]
    tier: dict[str, Any] = {
        "nodes": list(topology.tiers[rank]),
        "total_bytes": sum(node.total_bytes for node in nodes),
    }
    for name in (*_LATENCIES, *_BANDWIDTHS):
        values = [getattr(node, name) for node in nodes]
        total = sum(values) if all(values) else None
        tier[name] = total and total / len(values) if name in _LATENCIES else total
    return tier


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
    ``short_lived`` processes there are samples but no mappings, as of ``unread`` ones, which still
    ran.
    """

    runtime_ns: int
    clock: ClockKind
    elapsed_ns: int
    exit_code: int | None
    processes: int
    short_lived: int
    unread: int
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
        Sources(request.sample) as sources,
        contextlib.closing(Launched(command, prepare)) as child,
        TraceWriter(request.path, describe(command, topology, sources, request.tier)) as writer,
    ):
        target = TargetSpec("recorded", pids=(child.pid,))
        return _record(request, target, sources, writer, child.exited, child)


def record_running(request: RecordRequest, target: TargetSpec) -> RecordResult:
    """Record processes that run; raises as ``record_command``.

    Of a target with pids until all of them have ended, of another one until it is stopped.
    Instructions are counted for pids only: the count takes descriptors for each thread.
    """
    with Sources(request.sample) as sources, contextlib.ExitStack() as opened:
        running = [opened.enter_context(contextlib.closing(attach(pid))) for pid in target.pids]
        for pid in target.pids:
            _check_running(pid)
        if not running and (reason := explain_empty(target)):
            raise TargetError(f"nothing to record: {reason}")
        if not running and not sources.sampler.capabilities.modelled_clock:
            sources.counter.close()
            sources.counter = InstructionCounter("not counted: not recorded by pid")

        def ended(timeout_s: float) -> bool:
            end_s = time.monotonic() + timeout_s
            if not running:
                time.sleep(timeout_s)
            return bool(running) and all(each.wait(end_s - time.monotonic()) for each in running)

        about = describe([], read_topology(), sources, None)
        writer = opened.enter_context(TraceWriter(request.path, about))
        return _record(request, target, sources, writer, ended)


def _check_running(pid: int) -> None:
    process, seen = identify(pid), read_live_stat(pid)
    if process is None:
        raise TargetError(f"process {pid} has exited before it was recorded: name another")
    if seen is not None and seen.process != process:
        raise TargetError(
            f"the first thread of process {pid} has ended, and its mappings cannot be read by that"
            " id: record the program from its start (hmd record -- PROGRAM)"
        )


def _record(
    request: RecordRequest,
    target: TargetSpec,
    sources: Sources,
    writer: TraceWriter,
    exited: Callable[[float], bool],
    child: Launched | None = None,
) -> RecordResult:
    """Record until the end, or a signal that asks for it; releases the ``child``, if it is one."""
    recorder = Recorder(target, sources, writer, request.settings)
    recorder.begin()
    began = sources.now()
    if child is not None:
        recorder.since_ns = began.ns
        child.release()
    until_s = float("inf") if request.seconds is None else time.monotonic() + request.seconds
    # An exception during a write would leave half a block.
    handlers = {
        number: signal.signal(number, lambda *_: recorder.stop())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        recorder.run(exited, until_s)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    ended = recorder.ended or sources.now()
    ending = Ending(
        began.ns,
        max(0, ended.ns - began.ns),  # the clocks of two CPUs may differ
        None if child is None else child.wait(0),
        ended.monotonic_ns - began.monotonic_ns,
    )
    writer.write_ending(ending)
    return RecordResult(
        runtime_ns=ending.runtime_ns,
        clock=sources.clock.kind,
        elapsed_ns=ended.monotonic_ns - began.monotonic_ns,
        exit_code=ending.exit_code,
        processes=recorder.processes,
        short_lived=recorder.short_lived,
        unread=recorder.unread,
        samples=writer.samples,
        lost=sources.losses.lost,
        throttled=sources.losses.throttled,
        period=sources.sampler.period,
        pair_period=sources.sampler.pair_period,
        detail=sources.sampler.detail,
    )


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
