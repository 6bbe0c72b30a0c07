# SPDX-License-Identifier: MIT
"""A case of the comparison: a program of the suite, the ratio of fast to slow memory, a system.

One run of a program under a system: its runtime, and the pages migrated during it.

Stored results of cases: the trials of each, their digest and commit; their rows in JSON.

A row has the values of the median run by modelled time, and all runs in the list ``runs``.

A program as the comparison runs it: for long enough that systems can move its pages.

A program of the suite that is too short for that has a longer run of its own (``long_command``).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from bench.compare import testbed
from bench.compare.testbed import Start, Testbed
from bench.suite.ground_truth import program_digest
from bench.suite.program import SuiteProgram, load_program
from hmd.base.errors import ConfigError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.demo.measure import FAST_NODE
from hmd.emulate.vm.guest import Command

RATIOS = ("1:2", "1:8", "1:16")
"""Fast to slow memory, both together as large as the program (as in Lee et al., MEMTIS, SOSP '23):
the fast tier has a third, a ninth and a seventeenth of its footprint."""

WHOLE = "whole"
"""Used instead of a ratio: nodes of unlimited size."""

SWEPT = "@swept"
"""Ending of the name of a system whose programs start with a fast node free of page cache."""

THP = "@thp"
"""Ending of the name of a system whose programs get transparent huge pages wherever they can."""

_CASE = re.compile(rf"(?P<program>[a-z][a-z0-9_]*):(?P<ratio>1:[1-9]\d*|{WHOLE}):(?P<system>\S+)")


@dataclass(frozen=True, slots=True, order=True)
class ComparisonCase:
    """One run; written ``drift:1:8:hmd:benefit``, or ``drift:whole:all-fast`` with no ratio."""

    program: str
    ratio: str
    system: str

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return f"{self.program}:{self.ratio}:{self.system}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the case that a text names; raises ConfigError for any other text."""
        found = _CASE.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"{text!r} is not a case: write PROGRAM:RATIO:SYSTEM, as in drift:1:8:first-touch"
            )
        return cls(**found.groupdict())

    def fast_bytes(self, footprint_bytes: int) -> int | None:
        """Return the size of the program's fast memory; None without a limit."""
        if self.ratio == WHOLE:
            return None
        return footprint_bytes // (1 + int(self.ratio.partition(":")[2]))


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
    of the host, in the mean (bench/compare/testbed.py). ``samples`` are those that hmd
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
        with testbed.going_on(stage), stage.modelled():
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


_TRIAL = tuple(each.name for each in fields(ComparisonTrial))
_NEEDED = {each.name for each in fields(ComparisonTrial) if each.default is MISSING}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The trials of a case, the digest of all that they depend on, and the measured commit."""

    trials: tuple[ComparisonTrial, ...]
    digest: str
    commit: str

    @property
    def trial(self) -> ComparisonTrial:
        """The median run by modelled time; of an even number, the faster of the two."""
        return median_run(self.trials)


def median_run(trials: Sequence[ComparisonTrial]) -> ComparisonTrial:
    """Return the run with the median modelled time; of an even number, the lower median."""
    ordered = sorted(trials, key=lambda trial: trial.modelled_seconds)
    return ordered[(len(ordered) - 1) // 2]


def rows(results: Mapping[ComparisonCase, CaseResult]) -> list[dict[str, Any]]:
    """Return results as rows of the JSON document, in the order of cases."""
    return [
        asdict(case)
        | asdict(found.trial)
        | {"runs": [asdict(trial) for trial in found.trials]}
        | {"digest": found.digest, "commit": found.commit}
        for case, found in sorted(results.items(), key=lambda item: item[0])
    ]


def results(of_rows: Iterable[Mapping[str, Any]]) -> dict[ComparisonCase, CaseResult]:
    """Return the results in rows by case; rows of another kind (the oracle's) are skipped."""
    return {
        ComparisonCase(row["program"], row["ratio"], row["system"]): CaseResult(
            tuple(map(trial_of, row["runs"])), row["digest"], row["commit"]
        )
        for row in of_rows
        if row.keys() >= {*_NEEDED, "digest", "commit"}
    }


def trial_of(row: Mapping[str, Any]) -> ComparisonTrial:
    """Return the trial in a row of JSON."""
    return ComparisonTrial(**{name: row[name] for name in _TRIAL if name in row})


def compared_program(name: str) -> SuiteProgram:
    """Return a program of the suite with its long command; ConfigError for an unknown name."""
    program = load_program(name)
    if not program.long_command:
        return program
    return program.model_copy(update={"command": program.long_command})


def compared_digest(name: str) -> str:
    """Return a digest of all that a run depends on but the machine and the system."""
    program, recorded = load_program(name), program_digest(name)
    if not program.long_command:
        return recorded
    text = "\0".join([recorded, *program.long_command])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def can_be_simulated(name: str) -> bool:
    """Whether the simulator can replay a recording of what the comparison runs.

    It replays one thread, and recordings are of the suite's shorter runs.
    """
    program = load_program(name)
    return program.threads == 1 and not program.long_command
