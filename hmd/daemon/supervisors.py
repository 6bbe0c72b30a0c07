# SPDX-License-Identifier: MIT
"""What the loop supervises around its ticks: sampler, targets, page cache, drains, own memory."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from hmd.base.errors import HmdError, MissingError
from hmd.daemon import settings
from hmd.daemon.log import OnceLogger
from hmd.daemon.stages import Stages
from hmd.heat.table import DETAIL_BYTES, TICK_BYTES, HeatTable
from hmd.linux.cgroups import MemoryLimit, MemoryLimitReader
from hmd.linux.damon import NOTE
from hmd.linux.mappings import Mappings
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import TargetSpec, explain_empty
from hmd.linux.topology import CpuWatch, Topology, read_node_use
from hmd.metrics.status import DrainStatus
from hmd.migrate.cache_demotion import CacheDemotion, CacheSettings
from hmd.migrate.drain import DrainRequest, DrainWorker
from hmd.policy import registry
from hmd.policy.admin import MAX_STALLED_TICKS, movable_pages
from hmd.sample.selection import OpenedSampler, open_sampler

RETRY_S: Final = 60.0
"""Time between two attempts to open a sampler again, or to claim DAMON."""
MAX_FAILED_TICKS: Final = 5
"""Ticks in a row whose samples could not be read, after which the sampler is opened again."""

STAY_SHARE: Final = 0.9
GROW_SHARE: Final = 0.8
"""Shares of the memory limit: detail is given up above the first, and grows up to the second."""
LOG_INTERVAL_S: Final = 600.0

ALIVE_S: Final = 0.5
"""Time between two signs of life while the start waits for kernels."""

MAX_REASON: Final = 1000
"""Characters of an explanation."""
MAX_EXPLAINED: Final = 8
"""Targets without processes that are explained: each takes a read of all processes."""
EXPLAIN_SHARE: Final = 0.01
"""Share of a CPU that explanations may take."""
EXPLAIN_S: Final = 600.0
LOG_AGAIN_S: Final = 3600.0
"""Time between two explanations, and between two lines of the log on a target."""


class SamplerSupervisor:
    """Opens another sampler where CPUs have changed, this one fails, or a better one works.

    A sampler has a ring per CPU that was online when it was opened. With ``sampler: auto``, a
    better one may have been busy, or memory or descriptors short, when the daemon started.
    """

    def __init__(self, log: logging.Logger, sysfs: Path) -> None:
        self._log, self._warnings = log, OnceLogger(log)
        self._cpus = CpuWatch(sysfs)
        self._failed_ticks = 0
        self._replace = False
        self._next_s: float | None = None

    def count_tick(self, *, failed: bool) -> None:
        """Count a tick; ``failed``: its samples could not be read."""
        self._failed_ticks = self._failed_ticks + 1 if failed else 0

    def open_another(self, stages: Stages, now_s: float) -> OpenedSampler | None:
        """Return another sampler for the stages, open and owned by the caller; None to go on.

        At once after a change of CPUs, else once in ``RETRY_S`` where there is a reason.
        """
        changed = self._cpus.changed()
        self._replace |= changed or self._failed_ticks >= MAX_FAILED_TICKS
        if self._next_s is None:
            self._next_s = now_s + RETRY_S
        due = (self._replace or stages.opened.better_later) and now_s >= self._next_s
        if not (changed or due):
            return None
        self._next_s = now_s + RETRY_S
        better_than = None if self._replace else stages.sampler.name
        try:
            opened = open_sampler(
                settings.sample_settings(stages.config),
                stages.proc,
                stages.sysfs,
                stages.sampler,
                better_than,
            )
        except HmdError as error:
            self._warnings.warn(f"the sampler {stages.sampler.name} stays: {error}")
            return None
        self._replace, self._failed_ticks = False, 0
        if opened.sampler is stages.sampler:
            return None
        self._log.info("sampler opened again: %s", opened.reason)
        return opened


class KernelLoader:
    """Loads kernels when there is something to count, and has what is missing compiled before.

    To compile in the loop would stop it for a minute and leave it with five times the memory: a
    process of its own does so, and none is followed until it has ended.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._compiler: subprocess.Popen[bytes] | None = None

    @property
    def compiling(self) -> bool:
        """Whether kernels are being compiled."""
        return self._compiler is not None

    def load(self, policy: str, alive: Callable[[], None], *, wait: bool = False) -> bool:
        """Load the kernels of heat and of a policy; return False while they are compiled.

        ``alive`` is called now and then. With ``wait`` it returns when they are loaded.
        """
        if self._compiler is None and registry.needs_compiler((policy,)):
            self._log.warning("compiling kernels, for about a minute; no process is followed yet")
            self._compiler = subprocess.Popen(
                registry.COMPILER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the daemon, which ends it
            )
            with suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, self._compiler.pid, 19)
        while self._compiler is not None:
            alive()
            code = self._compiler.poll()
            if code is not None:
                self._compiler = None
                failed = ": that failed, and the daemon does it itself" if code else ""
                self._log.info("kernels are compiled%s", failed)
            elif not wait:
                return False
            else:
                time.sleep(ALIVE_S)
        registry.warm(alive, (policy,))
        return True

    def close(self) -> None:
        """Stop compiling."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.wait()


class EmptyTargets:
    """Says why targets have no processes: in the log once an hour, and in the status.

    One target at a time, and as rarely as ``EXPLAIN_SHARE`` asks: others' processes come and go,
    and each explanation reads all of the machine.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged_s: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        self._waiting: list[TargetSpec] = []
        self._next_s = self._rested_s = float("-inf")

    def explain(self, stages: Stages, now_s: float, *, changed: bool) -> Mapping[str, str]:
        """Return the reasons by name of target; ``changed``: other processes are tracked."""
        due, tracked = now_s >= self._next_s, stages.tracked
        if changed or due:
            full, known = set(tracked.targets), self._reasons
            empty = [s for s in settings.target_specs(stages.config) if s.name not in full]
            del empty[MAX_EXPLAINED:]
            self._reasons = {spec.name: known[spec.name] for spec in empty if spec.name in known}
            self._waiting = [spec for spec in empty if due or spec.name not in known]
            self._next_s = now_s + EXPLAIN_S if due else self._next_s
        if self._waiting and now_s >= self._rested_s:
            spec, begun_s = self._waiting.pop(0), time.thread_time()
            reason = explain_empty(spec, set(tracked.processes), stages.proc)[:MAX_REASON]
            self._reasons = {**self._reasons, spec.name: reason}
            self._rested_s = now_s + (time.thread_time() - begun_s) / EXPLAIN_SHARE
            if reason and now_s - self._logged_s.get(spec.name, float("-inf")) >= LOG_AGAIN_S:
                self._logged_s[spec.name] = now_s
                self._log.warning("target %s: %s", spec.name, reason)
        return self._reasons


class PageCacheDemoter:
    """Demotes page cache where the configuration asks for headroom and DAMON is free.

    What prevents it is logged once, and tried again after a while.
    """

    def __init__(self, log: logging.Logger, proc: Path, sysfs: Path, note: Path = NOTE) -> None:
        """``note`` is the file of the claim to DAMON."""
        self._warnings, self._proc, self._sysfs, self._note = OnceLogger(log), proc, sysfs, note
        self._demotion: CacheDemotion | None = None
        self._configured: tuple[CacheSettings, tuple[tuple[int, ...], ...]] | None = None
        self._next_s = float("-inf")
        self._past_cpu_s = 0.0

    @property
    def nodes(self) -> frozenset[int]:
        """Nodes whose unused page cache is being demoted."""
        return self._demotion.active if self._demotion else frozenset()

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads so far, in seconds."""
        return self._past_cpu_s + (self._demotion.cpu_s if self._demotion else 0.0)

    def demote(
        self,
        wanted: CacheSettings | None,
        topology: Topology,
        now_s: float,
        *,
        damon_in_use: bool,
        paused: bool,
    ) -> None:
        """Adapt to the configuration, the nodes and their free memory.

        ``damon_in_use``: by the sampler.
        """
        if wanted is None or topology.one_tier:
            self.close()
            return
        if (wanted, topology.tiers) != self._configured:
            self.close()
            self._configured, self._next_s = (wanted, topology.tiers), float("-inf")
        try:
            if self._demotion is None and now_s >= self._next_s:
                self._next_s = now_s + RETRY_S
                if damon_in_use:
                    raise MissingError("DAMON is in use by the sampler")
                self._demotion = CacheDemotion(
                    wanted, topology, self._proc, self._sysfs, self._note
                )
            if self._demotion is not None:
                self._demotion.update(paused=paused)
        except HmdError as error:
            self._warnings.warn(f"migrate.cache_headroom has no effect: {error}")
            self.close()

    def close(self) -> None:
        """Stop demoting, and give DAMON back."""
        demotion, self._demotion = self._demotion, None
        if demotion is not None:
            self._past_cpu_s += demotion.cpu_s
            with suppress(HmdError):  # taken by another program
                demotion.close()


class DrainSupervisor:
    """Sends the drain worker what ticks leave of drained nodes, and reports how far drains are."""

    def __init__(self, log: logging.Logger, proc: Path, sysfs: Path) -> None:
        self._worker = DrainWorker(log, proc, sysfs)

    def send_request(self, stages: Stages, now_s: float) -> None:
        """Send the worker its request, with what the tick's moves left of the budget."""
        admin, mover, tracked = stages.admin, stages.state.mover, stages.tracked
        if not admin.drained:
            mover.charge(self._worker.send(None, 0))
            return
        of_targets = [
            process
            for process, target in zip(tracked.processes, tracked.targets, strict=True)
            if target in admin.target_pins
        ]
        request = DrainRequest(
            serial=admin.drains,
            drained=admin.drained,
            topology=stages.topology,
            spared=_processes_of_ticks(stages),
            pinned=frozenset((*admin.pins, *of_targets)),
            unmovable=_keep_marker(stages),
            dry_run=stages.config.migrate.dry_run,
            cpu_share=min(settings.helper_share(stages.config), 1.0),
        )
        granted = 0 if admin.paused else mover.budget_bytes(now_s)
        mover.charge(self._worker.send(request, granted))

    def status(self, stages: Stages) -> Iterator[DrainStatus]:
        """Yield how far the drain of each drained node is."""
        admin, progress = stages.admin, self._worker.progress
        known = {node.id for node in stages.topology.nodes}
        current = progress.serial == admin.drains
        for node in sorted(admin.drained):
            waiting = movable_pages(admin, stages.state.heat, stages.tracked.targets, {node})
            yield DrainStatus(
                node=node,
                there=node in known,
                use=read_node_use(node, stages.sysfs),
                waiting_pages=int(waiting.sum()),
                moved_pages=progress.moved_pages if current else 0,
                passes=progress.passes if current else 0,
                left=progress.left.get(node, {}) if current else {},
                settled=node not in known or (current and progress.settled and not admin.paused),
            )

    def close(self) -> None:
        """End the worker's thread."""
        self._worker.close()


def _processes_of_ticks(stages: Stages) -> frozenset[ProcessId]:
    """Return the processes whose pages ticks still move; none once ticks have stalled."""
    admin, heat = stages.admin, stages.state.heat
    if admin.stalled_ticks >= MAX_STALLED_TICKS:
        return frozenset()
    pages = movable_pages(admin, heat, stages.tracked.targets, admin.drained)
    return frozenset(heat.processes[slot] for slot in np.flatnonzero(pages).tolist())


def _keep_marker(stages: Stages) -> Callable[[ProcessId, Mappings], Mappings]:
    """Return the function that marks the mappings that the configuration keeps."""
    tracked = stages.tracked
    targets = dict(zip(tracked.processes, tracked.targets, strict=True))
    kept = settings.kept_mappings(stages.config, targets)
    return lambda process, found: found.keeping(kept[process]) if process in kept else found


class MemoryLimiter:
    """Keeps the daemon below the memory limit of its control group (``MemoryMax=``).

    Near the limit the coldest detail of heat goes before the kernel kills: it sets how many chunks
    the heat table counts page by page. What else the daemon keeps (80 bytes per 2 MiB) is not given
    up.
    """

    def __init__(self, log: logging.Logger, reader: MemoryLimitReader | None = None) -> None:
        self._log = log
        self._reader = reader or MemoryLimitReader()
        self._unlogged = 0
        self._log_s = float("-inf")

    def limit_detail(self, heat: HeatTable, now_s: float) -> None:
        """Give up detail where the limit is near, let it grow again where it is not."""
        limit, wanted = self._reader.read(), heat.settings.max_page_slots
        if limit is None:
            heat.limit_page_slots(wanted)
            return
        rows = heat.chunks.page_slots
        stay, grow = detail_bounds(limit, rows)
        if rows > stay:
            self._unlogged += heat.limit_page_slots(min(grow, rows // 2))
        else:
            heat.limit_page_slots(max(rows, min(grow, wanted)))
        if self._unlogged and now_s - self._log_s >= LOG_INTERVAL_S:
            self._log_s = now_s
            self._log.warning(
                "%d of %d MiB of the service's memory limit are used: %d more chunks of 2 MiB are "
                "counted as a whole; raise MemoryMax= or lower heat.detail",
                limit.used_bytes >> 20,
                limit.limit_bytes >> 20,
                self._unlogged,
            )
            self._unlogged = 0


def detail_bounds(limit: MemoryLimit, rows: int) -> tuple[int, int]:
    """Return up to how many chunks detail may stay, and up to how many it may grow.

    ``rows`` is how many have memory for it now. To grow needs memory for the old and the new.
    """
    others = limit.used_bytes - rows * DETAIL_BYTES
    stay = (STAY_SHARE * limit.limit_bytes - others) / (DETAIL_BYTES + TICK_BYTES)
    grow = (GROW_SHARE * limit.limit_bytes - others) / (2 * DETAIL_BYTES + TICK_BYTES)
    return max(int(stay), 0), max(int(grow), 0)
