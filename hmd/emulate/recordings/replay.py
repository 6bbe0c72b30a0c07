# SPDX-License-Identifier: MIT
"""Replay of recorded accesses and misses through the timing model, with pages placed in any way.

It runs the same C library as the plugin in QEMU (hmd/emulate/timing/timing.h). ``TimingModel``
takes a machine (``TimingParams``) and accesses; it gives modelled time, the cost of each access,
and counters per CPU and node, at 10 to 30 ns per access (docs/explanation/timing-model.md).

Misses are replayed in parts on one CPU, or of several CPUs as a whole: ``replayed`` takes a layout,
which puts each page of a program on the fast or on the slow node of a preset, and prices every miss
on the node of its page; 20 to 100 ns per miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.units import PAGE_BYTES
from hmd.emulate._timing import ffi, lib
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import (
    MissOutcomes,
    MissStream,
    ThreadOrder,
)
from hmd.emulate.timing_params import TimingParams, native_params, timing_params
from hmd.linux.emulator_memory import NODE_WORDS, VCPU_WORDS, NodeCounters, VcpuCounters

UNMAPPED = np.uint64(2**64 - 1)
"""Physical address of a page that is not mapped."""

END: Final = 2**64 - 1
"""A time, or a row, that no recording reaches."""

_MISS_COLUMNS = (
    "instructions",
    "paid_hits",
    "near_hits",
    "page",
    "line",
    "flags",
    "depends",
    "page_paddr",
    "latency_ps",
    "clock_ps",
)

Layout: TypeAlias = npt.NDArray[np.bool_]
"""True for pages on the fast node, shape ``(user_pages,)``."""

# Frames below 16 MiB belong to the BIOS and to the kernel.
_FIRST_FRAME: Final = np.uint64(4096)


class MissReplay:
    """A replay of recorded misses in parts; it continues at ``next``.

    ``page_paddr``, shape ``(pages,)``, may change between parts: an ``UNMAPPED`` page stops the
    replay before its next access.
    """

    def __init__(
        self,
        timing: Callable[[], Any],
        stream: MissStream,
        page_paddr: npt.NDArray[np.uint64],
        into: MissOutcomes | None,
    ) -> None:
        _check_shapes(stream, page_paddr, into)
        if stream.threads is not None:
            raise HmdError(
                f"a recording of {stream.cpus} CPUs is replayed as a whole only: record the "
                "program with one thread"
            )
        self._timing = timing
        self._stream = stream
        self.page_paddr = np.ascontiguousarray(page_paddr)
        self._misses = ffi.new("struct timing_misses *")
        self._held = _fill_misses(self._misses, stream, self.page_paddr, into)
        self._progress = ffi.new("struct timing_progress *")

    @property
    def next(self) -> int:
        """The first row that is not replayed yet."""
        return int(self._progress.next)

    @property
    def done(self) -> bool:
        """Whether all rows are replayed."""
        return self.next == len(self._stream)

    @property
    def stopped_at(self) -> int | None:
        """The unmapped page that the next row accesses; None if that page is mapped."""
        if self.done:
            return None
        page = int(self._stream.page[self.next])
        return page if self.page_paddr[page] == UNMAPPED else None

    def run(self, until_ps: int = END, until_row: int = END) -> int:
        """Replay rows before a time of the CPU's clock; returns its busy time so far, in ps.

        Stops before ``until_row`` and before an access to a page that is not mapped.
        """
        self._misses.count = min(until_row, len(self._stream))
        return int(lib.timing_replay_misses(self._timing(), self._misses, self._progress, until_ps))


def replay_threads(
    timing: Any,
    stream: MissStream,
    order: ThreadOrder,
    page_paddr: npt.NDArray[np.uint64],
    into: MissOutcomes | None,
) -> int:
    """Replay the misses of several CPUs; returns the busy time of the CPU that ends last, in ps.

    ``timing`` is a ``struct timing`` with as many CPUs as the stream.
    """
    _check_shapes(stream, page_paddr, into)
    native = ffi.new("struct timing_misses[]", order.cpus)
    held = [_fill_misses(native[cpu], stream, page_paddr, into, cpu) for cpu in range(order.cpus)]
    meets_at = np.ascontiguousarray(order.meets_at)
    held.append([ffi.from_buffer("uint64_t[]", meets_at)])
    threads = ffi.new("struct timing_threads *")
    threads.cpus, threads.misses = order.cpus, native
    threads.meetings, threads.meets_at = len(meets_at), held[-1][0]
    ended_ps = int(lib.timing_replay_threads(timing, threads))
    if ended_ps == 2**64 - 1:
        raise MemoryError("no memory to replay several CPUs")
    return ended_ps


def _check_shapes(
    stream: MissStream, page_paddr: npt.NDArray[np.uint64], into: MissOutcomes | None
) -> None:
    if page_paddr.shape != (stream.pages,) or page_paddr.dtype != np.uint64:
        raise ValueError(f"page_paddr must be uint64 of shape ({stream.pages},)")
    if into is not None and any(
        len(each) != len(stream) for each in (into.latency_ps, into.clock_ps)
    ):
        raise ValueError("into must have as many rows as the stream")


def _fill_misses(
    native: Any,
    stream: MissStream,
    page_paddr: npt.NDArray[np.uint64],
    into: MissOutcomes | None,
    cpu: int = 0,
) -> list[Any]:
    """Point a ``struct timing_misses`` to the rows of a CPU; returns what must be kept alive."""
    rows = stream.rows_of(cpu)
    columns = [*(column[rows] for column in stream.columns()), np.ascontiguousarray(page_paddr)]
    if into is not None:
        columns += [into.latency_ps[rows], into.clock_ps[rows]]
    held = [ffi.from_buffer(f"{each.dtype}_t[]", each) for each in columns]
    native.count = rows.stop - rows.start
    native.idle = stream.cpus > 1
    for name, column in zip(_MISS_COLUMNS, held, strict=False):
        setattr(native, name, column)
    return held


class TimingModel:
    """A machine that starts at modelled time 0; a context manager.

    Threads may share it only for replay, each on CPUs of its own. Raises HmdError, which names the
    parameter and its range, where a parameter is out of range.
    """

    def __init__(self, params: TimingParams) -> None:
        why = ffi.new("const char **")
        self.params = params
        try:
            native = native_params(params)
        except OverflowError as error:
            raise HmdError(f"timing model: a parameter is out of range: {error}") from error
        self._timing = lib.timing_new(native, why)
        if not self._timing:
            raise HmdError(f"timing model: {ffi.string(why[0]).decode()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory; any further use raises ``ValueError``."""
        lib.timing_free(self._timing)
        self._timing = ffi.NULL

    def replay_misses(
        self,
        stream: MissStream,
        page_paddr: npt.NDArray[np.uint64],
        into: MissOutcomes | None = None,
    ) -> int:
        """Replay recorded misses on CPU 0 of a fresh model, with pages at ``page_paddr``.

        Returns the CPU's busy time in modelled ps; costs 20 to 60 ns of host time per miss.
        A stream of several CPUs is replayed on as many, from CPU 0 on; the time is then that of
        the CPU that ends last. ``into``, made by ``MissOutcomes.empty(len(stream))``, receives the
        latency and the issue time of each.
        """
        if stream.threads is None:
            return self.misses(stream, page_paddr, into).run()
        timing = self.open(stream.cpus - 1)
        return replay_threads(timing, stream, stream.threads, page_paddr, into)

    def misses(
        self,
        stream: MissStream,
        page_paddr: npt.NDArray[np.uint64],
        into: MissOutcomes | None = None,
    ) -> MissReplay:
        """Return a replay as ``replay_misses`` does it, to be run in parts.

        Raises HmdError for a stream of several CPUs.
        """
        self.open()
        return MissReplay(self.open, stream, page_paddr, into)

    def sleep(self, vcpu: int, until_ps: int) -> None:
        """Advance a CPU's clock to ``until_ps`` without busy time."""
        lib.timing_sleep(self.open(vcpu), vcpu, until_ps)

    def sample(self, vcpu: int, records: int, *, each_interrupts: bool = False) -> int:
        """Charge a CPU for sampling records that the PMU wrote on it; returns the time in ps.

        A record takes ``sample_record_ps``, and each ``sample_buffer_records`` of a CPU one
        interrupt; with ``each_interrupts``, as where samples have timestamps, each record does.
        Nothing is charged without ``ModelPart.SAMPLING``.
        """
        return int(lib.timing_sample(self.open(vcpu), vcpu, records, each_interrupts))

    def shootdown(self, sender: int, receivers: Iterable[int]) -> None:
        """Charge a round of interprocessor interrupts, as of a TLB shootdown.

        The sender waits until the receivers have answered; their clocks are their own. Nothing is
        charged without ``ModelPart.SHOOTDOWN``.
        """
        lib.timing_shootdown_sent(self.open(sender), sender)
        for vcpu in receivers:
            lib.timing_shootdown_received(self.open(vcpu), vcpu)

    def copy_pages(
        self,
        vcpu: int,
        from_paddr: npt.NDArray[np.uint64],
        to_paddr: npt.NDArray[np.uint64],
        instructions: int,
    ) -> int:
        """Copy 4 KiB pages on a CPU, as the kernel's page migration does; returns the CPU's clock.

        Each page takes ``instructions`` in addition to the copy.
        """
        given = [np.ascontiguousarray(each, np.uint64) for each in (from_paddr, to_paddr)]
        columns = [ffi.from_buffer("uint64_t[]", each) for each in given]
        return int(
            lib.timing_copy_pages(self.open(vcpu), vcpu, len(from_paddr), *columns, instructions)
        )

    def idle(self, vcpu: int, instructions: int) -> None:
        """Halt a CPU: it waits for its misses in flight, then its clock stops."""
        lib.timing_idle(self.open(vcpu), vcpu, instructions)

    @property
    def clock_ps(self) -> int:
        """Modelled time of the machine: the largest of its CPUs' clocks."""
        return int(lib.timing_clock_ps(self.open()))

    def counters(self, vcpu: int) -> VcpuCounters:
        """Return a copy of a CPU's counters."""
        native = lib.timing_counters_of(self.open(vcpu), vcpu)
        nodes = tuple(
            NodeCounters(**{name: getattr(native.node[i], name) for name in NODE_WORDS})
            for i in range(len(self.params.nodes))
        )
        sums = {name: getattr(native, name) for name in VCPU_WORDS}
        return VcpuCounters(**sums, nodes=nodes)

    def open(self, vcpu: int = 0) -> Any:
        """Return the native model; ValueError once it is closed, or for a CPU that it lacks."""
        if not self._timing:
            raise ValueError("the timing model is closed")
        if not 0 <= vcpu < self.params.vcpus:
            raise ValueError(f"no CPU {vcpu}: the machine has {self.params.vcpus}")
        return self._timing


def layout_of(pages: int, fast: npt.NDArray[np.int64]) -> Layout:
    """Return the layout of so many pages that has these on the fast node."""
    layout = np.zeros(pages, np.bool_)
    layout[fast] = True
    return layout


def tiers_of(preset: Preset) -> tuple[int, int]:
    """Return the nodes of the highest and of the lowest read bandwidth: (fast, slow)."""
    speed = [node.read_bandwidth_gbps for node in preset.nodes]
    return int(np.argmax(speed)), int(np.argmin(speed))


def frames(stream: MissStream, preset: Preset, layout: Layout) -> npt.NDArray[np.uint64]:
    """Return the physical address of each page, shape ``(pages,)``; the kernel's pages are slow."""
    fast, slow = (np.uint64(timing_params(preset).nodes[n].phys_start) for n in tiers_of(preset))
    start = np.full(stream.pages, slow, np.uint64)
    start[: stream.user_pages][layout] = fast
    return start + (np.arange(stream.pages, dtype=np.uint64) + _FIRST_FRAME) * np.uint64(PAGE_BYTES)


def replayed(
    stream: MissStream, preset: Preset, layout: Layout, into: MissOutcomes | None = None
) -> int:
    """Return the runtime of a program under a layout, in ps of its CPUs' modelled time.

    ``into`` receives the clock and the latency of every miss. A preset with fewer CPUs than the
    program ran on gets as many.
    """
    params = timing_params(preset)
    with TimingModel(replace(params, vcpus=max(params.vcpus, stream.cpus))) as model:
        return model.replay_misses(stream, frames(stream, preset, layout), into)
