"""The service: ticks on a clock; between them signals, reloads and the watchdog."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hmd.config import Config
from hmd.control.admin_commands import AdminCommands
from hmd.control.command_queue import PROMPT, CommandQueue
from hmd.daemon import stage_settings
from hmd.daemon.cache_upkeep import CacheUpkeep
from hmd.daemon.drain_progress import control_numbers, send_drain_request
from hmd.daemon.endpoints import Endpoints
from hmd.daemon.explanation import explain
from hmd.daemon.guard_report import GuardReport
from hmd.daemon.log import OnceLogger
from hmd.daemon.memory_watch import MemoryWatch
from hmd.daemon.notify import Notifier
from hmd.daemon.queries import socket_queries
from hmd.daemon.sampler_upkeep import SamplerUpkeep
from hmd.daemon.stages import SYSFS, build
from hmd.daemon.start_warnings import start_warnings
from hmd.daemon.status_line import status_line
from hmd.daemon.target_log import TargetLog
from hmd.daemon.wakeup_fd import WakeupFd
from hmd.decide import registry
from hmd.errors import HmdError, TransientError
from hmd.machine.nodes.node_watch import NodeWatch
from hmd.machine.nodes.numa_nodes import read_topology
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import PROC, ProcessId
from hmd.machine.procfs import format_ids
from hmd.migrate.drain_worker import DrainWorker
from hmd.observe.health import TickWatch
from hmd.observe.heat_history import HeatHistory
from hmd.observe.move_journal import MoveJournal
from hmd.observe.observer import Observer, Places
from hmd.observe.residency_counts import heat_pages, resident_pages
from hmd.observe.tick_record import Stage, TickRecord
from hmd.pipeline.hot_set_watch import HotSetWatch
from hmd.pipeline.stage_guard import StageGuard
from hmd.pipeline.tick import run_tick
from hmd.sample.auto_select import Chosen

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

PAGE_COUNT_S = 10.0
"""Seconds between two counts of all pages by heat, which cost as much as a decision."""

LOST_TICKS = 30
"""Ticks in a row that fail outside all stages, after which the daemon ends to be started again."""


class Service:
    """The daemon from its first tick to its last.

    ``load`` reads the configuration (raises ``ConfigError``), ``file`` is its name in messages.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        file: str,
        notifier: Notifier,
        proc: Path = PROC,
        sysfs: Path = SYSFS,
        *,
        preload: bool = False,
    ) -> None:
        """Build the stages and open the endpoints; raises ``HmdError`` where one fails.

        With ``preload`` the kernels are loaded now, even if there is no process to follow.
        """
        self._load, self._file, self._notifier = load, file, notifier
        self._log = logging.getLogger("hmd")
        self._warnings = OnceLogger(self._log)
        self._configured = config = load()
        with contextlib.ExitStack() as undo:
            self._wakeup = WakeupFd()
            undo.callback(self._wakeup.close)
            self.stages = build(config, None, proc, sysfs)
            undo.callback(self.stages.close)
            if preload or any(self.stages.watcher.scan().values()):
                # While the service manager waits for the start.
                registry.warm(notifier.alive, (config.decide.policy,))
            setting = stage_settings.observer_setting(config, file)
            stages = self.stages
            self.observer = Observer(setting, stages.topology, stages.sampler, proc=proc)
            self._heat_map = HeatHistory(stages.topology)
            self._hot_set = HotSetWatch()
            self._drain_worker = DrainWorker(self._log, proc, sysfs)
            commands = AdminCommands(stages.admin, self, proc)
            self._control = CommandQueue(commands, self._wakeup.wake, self._log, proc)
            self._nodes = NodeWatch(sysfs)
            self._sampler_upkeep = SamplerUpkeep(self._log, sysfs)
            self._cache_upkeep = CacheUpkeep(self._log)
            self.followed: Mapping[ProcessId, str] = {}
            self._publish_control()
            self._ticks = TickWatch()
            latest, health = lambda: self.observer.latest, self._ticks.health
            queries = socket_queries(latest, self._heat_map, health, proc)
            self._endpoints = Endpoints(queries, self._control.handlers, latest, health)
            self._endpoints.open(config)
            undo.pop_all()
        self._guard, self._target_log = StageGuard(self._log), TargetLog(self._log)
        self._guard_report, self._journal = GuardReport(self._log), MoveJournal()
        self._memory_watch = MemoryWatch(self._log)
        self._counted_s = float("-inf")
        self._places: Places | None = None
        self._stop = self._reload = False
        self._guard.run(Stage.OBSERVE, self._warn, None)

    def run(self, ticks: int | None = None) -> None:
        """Tick until a signal stops the service, or ``ticks`` times.

        Whatever fails in a tick is logged, and the next tick follows. ``TransientError`` where
        ``LOST_TICKS`` in a row failed as a whole: a new process may do better.
        """
        with self._wakeup.on(SIGNALS, self._on_signal):
            line = status_line(self.stages, self.observer.latest)
            self._notifier.ready(line)
            self._log.info("ready: %s", line)
            due_s, done, lost = time.monotonic(), 0, 0
            while not self._stop and (ticks is None or done < ticks):
                tick = self._guard.run(Stage.OBSERVE, lambda: self.tick(time.monotonic()), None)
                lost = lost + 1 if tick is None else 0
                if lost >= LOST_TICKS:
                    raise TransientError(f"{lost} ticks failed in a row: the log has the reason")
                done += 1
                if done != ticks:
                    # A tick that took too long delays the later ones, without a burst to catch up;
                    # one before its time, for a reload, is a tick's length before the next.
                    now_s = time.monotonic()
                    due_s = max(min(due_s, now_s) + self.stages.tick_s, now_s)
                    self._wait(due_s)
            self._notifier.stopping()

    def close(self) -> None:
        """Close everything."""
        self._endpoints.close()
        self._drain_worker.close()
        self._cache_upkeep.close()
        self.stages.close()
        self._wakeup.close()

    @property
    def topology(self) -> Topology:
        """The nodes with memory, which admin requests name."""
        return self.stages.topology

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets of the configuration."""
        return tuple(target.name for target in self.stages.config.targets)

    def use_policy(self, name: str | None) -> None:
        """Plan with another policy than the configuration's; raises ``HmdError``.

        ``name`` is in the admin state already.
        """
        stage_settings.with_policy(self._configured, name)
        self._rebuild(self._configured)

    def explain(self, process: ProcessId, address: int | None) -> dict[str, Any]:
        """Return why pages of a process are where they are; raises ``HmdError``."""
        return explain(self.stages, self._journal, process, address)

    def tick(self, now_s: float) -> TickRecord:
        """Run one tick, after the reload and the admin requests that wait for its boundary."""
        if self._reload:
            self._reload = False
            self.reload()
        self._serve()
        self._target_log.summarise(now_s)
        self._guard.begin()
        self._guard.run(Stage.SAMPLE, self._follow_nodes, None)
        self._guard.run(Stage.SAMPLE, lambda: self._follow_sampler(now_s), None)
        stages = self.stages
        changed = self._guard.run(
            Stage.SAMPLE, lambda: stages.follow(now_s, self._serve_prompt), False
        )
        if changed and stages.processes and not self.followed:
            self._guard.run(Stage.HEAT, self._load_kernels, None)
        if changed:
            after = dict(zip(stages.processes, stages.targets, strict=True))
            self._target_log.changed(self.followed, after, now_s)
            stages.admin.forget_exited(stages.proc)
            self.followed = after
        self._guard.run(Stage.SAMPLE, lambda: stages.begin_tick(now_s), None)
        self._guard.run(Stage.HEAT, lambda: self._memory_watch.follow(stages.heat, now_s), None)
        tick = run_tick(stages, self._guard, now_s)
        self._guard.run(Stage.MIGRATE, lambda: self._follow_cache(now_s), None)
        drain = partial(send_drain_request, stages, self._drain_worker, now_s)
        self._guard.run(Stage.MIGRATE, drain, None)
        self._sampler_upkeep.ticked(failed=Stage.SAMPLE in self._guard.failed)
        self._guard.run(Stage.OBSERVE, lambda: self._observe(tick), None)
        failed = Stage.OBSERVE in self._guard.failed
        self.observer.observed(self._guard.seconds[Stage.OBSERVE], failed)
        self._guard.run(Stage.OBSERVE, lambda: self._hold_quota(tick, changed), None)
        self._notifier.alive()
        self._ticks.ticked(stages.tick_s)
        if self._notifier.present:
            self._notifier.status(status_line(self.stages, self.observer.latest))
        return tick

    def reload(self) -> bool:
        """Load the configuration again; on any error the old one stays in force."""
        self._notifier.reloading()
        try:
            config = self._load()
            self._rebuild(config)
            self._configured = config
        except Exception as error:
            expected = isinstance(error, HmdError)
            for line in str(error).splitlines():
                self._log.error("reload: %s", line, exc_info=None if expected else error)
            self._log.error("reload failed: the old configuration stays in force")
            self.observer.reloaded(str(error))
            self._notifier.ready(status_line(self.stages, self.observer.latest))
            return False
        self.observer.reloaded()
        self._log.info("reloaded %s", self._file)
        self._guard.run(Stage.OBSERVE, self._warn, None)
        self._notifier.ready(status_line(self.stages, self.observer.latest))
        return True

    def _rebuild(self, configured: Config, chosen: Chosen | None = None) -> None:
        """Build the stages again, with the admin state; on any error the old ones stay.

        ``chosen`` is a sampler to use from now on.
        """
        old = self.stages
        config = stage_settings.with_policy(configured, old.admin.policy)
        new = build(config, old, old.proc, old.sysfs, chosen)
        try:
            self._endpoints.open(config)
        except BaseException:
            new.close(successor=old)
            raise
        old.close(successor=new)
        new.enter()
        self.stages = new
        if self.followed:
            self._guard.run(Stage.DECIDE, self._load_kernels, None)
        setting = stage_settings.observer_setting(config, self._file)
        self.observer.use(setting, new.topology, new.sampler)
        if new.topology.tiers != old.topology.tiers:
            self._heat_map.use(new.topology)

    def _load_kernels(self) -> None:
        """Load the kernels of heat and of the policy, as far as they are not loaded."""
        begun_s = time.thread_time()
        registry.warm(self._notifier.alive, (self.stages.policy.name,))
        self.stages.quota.exclude(time.thread_time() - begun_s)

    def _serve(self) -> None:
        """Execute the admin requests that wait, and publish the admin state."""
        self._serve_requests(None)

    def _serve_prompt(self) -> None:
        """Execute the requests that need not wait for the end of a scan of all processes."""
        self._serve_requests(PROMPT)

    def _serve_requests(self, only: Container[str] | None) -> None:
        """Execute requests; what users ask for does not count against the quota of the daemon."""
        begun_s = self._control.users_cpu_s
        publish = partial(self._guard.run, Stage.OBSERVE, self._publish_control, None)
        self._control.serve(publish, only)
        self.stages.quota.exclude(self._control.users_cpu_s - begun_s)

    def _publish_control(self) -> None:
        numbers = control_numbers(
            self.stages, self.followed, self._drain_worker, self._control.outcomes
        )
        self.observer.controlled(numbers)

    def _follow_nodes(self) -> None:
        """Follow memory that comes or goes; on any error the nodes stay as they were."""
        stages, now = self.stages, self.stages.topology
        if self._nodes.due():
            tiers = stages.config.machine.tiers
            found = read_topology(stages.sysfs, tiers, fit_override=True)
            if (found.tiers, found.latency_ns) != (now.tiers, now.latency_ns):
                self._rebuild(self._configured)
                tiers_text = " | ".join(format_ids(nodes) for nodes in found.tiers)
                self._log.info("memory nodes have changed: tiers are now %s", tiers_text)
                return
        sizes = {memory.node: memory.total_bytes for memory in stages.memory}
        nodes = tuple(
            replace(node, total_bytes=sizes.get(node.id) or node.total_bytes) for node in now.nodes
        )
        if nodes != now.nodes:
            stages.topology = replace(now, nodes=nodes)
            setting = stage_settings.observer_setting(stages.config, self._file)
            self.observer.use(setting, stages.topology, stages.sampler)

    def _follow_sampler(self, now_s: float) -> None:
        """Use another sampler where CPUs have changed, this one fails, or a better one works."""
        found = self._sampler_upkeep.reopened(self.stages, now_s)
        if found is not None:
            self._rebuild(self._configured, found)

    def _follow_cache(self, now_s: float) -> None:
        """Demote unused page cache where the configuration asks for headroom."""
        self._cache_upkeep.follow(self.stages, now_s)
        self.stages.demotion_cpu_s = self._cache_upkeep.cpu_s
        self.observer.demoting(self._cache_upkeep.active)

    def _hold_quota(self, tick: TickRecord, changed: bool) -> None:
        stages, outcome = self.stages, tick.outcome
        moved_bytes = 0 if outcome is None or outcome.dry_run else outcome.moved_bytes
        rate = stages.config.migrate.rate
        changing = changed or 2 * moved_bytes >= rate * stages.config.tick > 0
        cpu_s = dict(self._guard.cpu_s)
        unsettled = self._hot_set.moves(tick, stages.topology, self._faster_bytes())
        stages.hold_quota(time.monotonic(), cpu_s, changing=changing, unsettled=unsettled)
        self.observer.budgeted(stages.budget.numbers(stages.rescan_s, stages.quota.overhead))

    def _faster_bytes(self) -> int:
        """Return what targets have on all tiers but the slowest, at the last observation."""
        targets = self.observer.latest.targets
        return sum(sum(target.numbers.resident_bytes[:-1]) for target in targets)

    def _observe(self, tick: TickRecord) -> None:
        stages = self.stages
        heat, topology = stages.heat, stages.topology
        by_heat = self._places.heat_pages if self._places else None
        if by_heat is None or tick.now_s - self._counted_s >= PAGE_COUNT_S:
            self._counted_s = tick.now_s
            stages.admin.forget_exited(stages.proc)
            by_heat = heat_pages(heat, topology)
        self._publish_control()
        self._places = Places(resident_pages(heat, topology), by_heat, replace(heat.stats))
        self._journal.add(tick, topology)
        self.observer.guarded(self._guard_report.of(stages.policy))
        self.observer.observe(tick, self._places)
        self._heat_map.record(tick, heat)

    def _warn(self) -> None:
        """Log what limits hmd on this machine, each warning once."""
        if self.stages.sampler.capabilities.ranks_heat:
            self._log.info("%s", self.stages.sampler_reason)
        for warning in start_warnings(self.stages, self._file):
            self._warnings.warn(warning)

    def _wait(self, due_s: float) -> None:
        """Sleep until a time or a signal; serve admin requests meanwhile."""
        watchdog_s = (self._notifier.watchdog_s or 0.0) / 2
        while not (self._stop or self._reload):
            left_s = due_s - time.monotonic()
            if left_s <= 0:
                return
            if self._wakeup.wait(min(left_s, watchdog_s or left_s)):
                self._guard.run(Stage.OBSERVE, self._serve, None)
            self._notifier.alive()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stop = True
            self.stages.mover.stop()
