"""One run of a program under a system: its runtime, and the pages migrated during it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from bench.compare import demotion
from bench.compare.testbed import Start, Testbed
from hmd.emulate.demo.variants import FAST_NODE
from hmd.emulate.virtual_machine.guest_command import Command
from hmd.units import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class ComparisonTrial:
    """Measurements from start to end of the program.

    ``modelled_seconds`` is the time by the timing model in which its CPU was busy (of several: at
    least one) or it slept, ``guest_seconds`` the time by the guest's clock. ``migrated_bytes`` are
    all migrations between nodes by any process (pgmigrate_success in /proc/vmstat),
    ``demoted_bytes`` those by reclaim (pgdemote_*), as kernel tiering does. ``fast_share`` is the
    share of the program's misses that the fast node served, ``fast_bytes`` what programs can have
    of that node at the start, as page cache or free, and ``gained_bytes`` the increase until the
    end: others' memory that was migrated or reclaimed. ``tick_seconds`` is hmd's interval between
    ticks by the guest's clock, ``unseen_share`` the share of the run before hmd found the program.
    ``misses`` and ``instructions`` are those of its CPUs, with the kernel's. ``host_wait_seconds``
    is the part of ``guest_seconds`` in which the emulator's threads of these CPUs waited for a CPU
    of the host, in the mean (bench/compare/host_contention.py). ``samples`` are those that hmd
    used, ``period`` its sampling period at the end, ``daemon_cpu_seconds`` its CPU time by the
    guest's clock, ``daemon_bytes`` its resident memory, which is on the slow node.
    ``asleep_seconds`` is the part of ``modelled_seconds`` in which the program's CPUs halted while
    another was busy: it slept at a page that moved, or waited for I/O. None where it is not known
    and left out: in results of earlier versions, and of servers, which wait for their load.
    """

    modelled_seconds: float
    guest_seconds: float
    migrated_bytes: int
    demoted_bytes: int
    fast_share: float
    fast_bytes: int
    gained_bytes: int
    tick_seconds: float = 0.0
    unseen_share: float = 0.0
    misses: int = 0
    instructions: int = 0
    host_wait_seconds: float = 0.0
    samples: int = 0
    period: int = 0
    daemon_cpu_seconds: float = 0.0
    daemon_bytes: int = 0
    asleep_seconds: float | None = None


def run_trial(
    stage: Testbed,
    command: Command,
    start: Start,
    fast_bytes: int | None,
    *,
    swept: bool = False,
    service: AbstractContextManager[object] | None = None,
    watch: AbstractContextManager[object] | None = None,
) -> ComparisonTrial:
    """Run a program with ``fast_bytes`` of the fast node (None: all); HmdError if it fails.

    That memory is full of page cache at the start, or with ``swept`` free. ``service`` is entered
    once the fast node is ready, ``watch`` around the program only.
    """
    with ExitStack() as undo:
        undo.callback(stage.fast_node.release)
        left = stage.preset.nodes[FAST_NODE].size
        if fast_bytes is not None:
            left = _reduced(stage, fast_bytes, swept)
        undo.enter_context(service or nullcontext())
        counted = stage.vmstat()
        with demotion.going_on(stage), stage.modelled():
            waited = stage.contention.read()
            before, began = stage.meter.read(), time.monotonic()
            with watch or nullcontext():
                stage.execute(command, start)
            took, passed = time.monotonic() - began, stage.meter.read().since(before)
            lost_s = stage.contention.read().since(waited)
        gained = 0
        if fast_bytes is not None:
            stage.fast_node.drop_cache()
            gained = _for_programs(stage) - left
        moved = {name: count - counted[name] for name, count in stage.vmstat().items()}
    asleep_s = None if command.load else passed.asleep_s
    demoted = sum(count for name, count in moved.items() if name.startswith("pgdemote_"))
    return ComparisonTrial(
        modelled_seconds=passed.busy_s + (asleep_s or 0.0),
        guest_seconds=took,
        migrated_bytes=moved["pgmigrate_success"] * PAGE_BYTES,
        demoted_bytes=demoted * PAGE_BYTES,
        fast_share=passed.fast_share,
        fast_bytes=left,
        gained_bytes=gained,
        misses=sum(passed.misses),
        instructions=passed.instructions,
        host_wait_seconds=lost_s,
        asleep_seconds=asleep_s,
    )


def _reduced(stage: Testbed, fast_bytes: int, swept: bool) -> int:
    """Reduce the fast node to ``fast_bytes`` for programs; returns what there is.

    Where it is not swept, cache that the kernel cannot move off the node, such as files of an
    earlier program that were promoted, stays and is part of these bytes.
    """
    stage.forget_inodes()
    if swept:
        stage.fast_node.clear()
        return stage.fast_node.leave(fast_bytes, drop_caches=False)
    stage.fast_node.demote_all()
    stays = min(stage.fast_node.page_cache_bytes(), fast_bytes)
    stage.fast_node.leave(fast_bytes - stays, drop_caches=False)
    left = _for_programs(stage)
    stage.fast_node.fill_with_cache()
    return left


def _for_programs(stage: Testbed) -> int:
    """Return the fast node's memory that programs can have, as page cache or free."""
    return stage.fast_node.for_programs_bytes() + stage.fast_node.page_cache_bytes()
