# SPDX-License-Identifier: MIT
"""The service: ticks on a clock; between them signals, reloads, admin requests and the watchdog.

:meth:`Service.tick` lists all that happens around one tick.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Final

from hmd import __version__
from hmd.base.errors import HmdError, TransientError
from hmd.base.units import PAGE_BYTES
from hmd.config import Config
from hmd.control.admin_store import AdminStore, describe
from hmd.control.commands import (
    PROMPT,
    AdminCommands,
    CommandQueue,
    HintReceiver,
    drop_stale_pins,
    queries,
)
from hmd.daemon import settings
from hmd.daemon.checks import refusal_warnings, start_warnings
from hmd.daemon.endpoints import Endpoints
from hmd.daemon.explain import explain
from hmd.daemon.log import OnceLogger, TargetLog
from hmd.daemon.memory_waits import MemoryWaits
from hmd.daemon.profile_keeper import ProfileKeeper
from hmd.daemon.stages import LOOK_S, Stages, build
from hmd.daemon.supervisors import (
    DrainSupervisor,
    EmptyTargets,
    KernelLoader,
    MemoryLimiter,
    PageCacheDemoter,
    SamplerSupervisor,
)
from hmd.daemon.systemd import Notifier, WakeupFd
from hmd.heat.table import HeatTable
from hmd.linux.procfs import PROC, SYSFS, ProcessId, format_ids
from hmd.linux.topology import NodeWatch, Topology, read_topology
from hmd.metrics.demand import measure_demand
from hmd.metrics.heat_history import HeatHistory
from hmd.metrics.history import HistoryRecorder
from hmd.metrics.move_journal import MoveJournal
from hmd.metrics.observer import Observer, ResidencyCounts, heat_pages, resident_pages
from hmd.metrics.status import MAX_LISTED, ControlStatus, PinStatus, Stage, TickWatch, Work
from hmd.metrics.tick_record import TickRecord
from hmd.policy import registry
from hmd.policy.admin import AdminState
from hmd.residency.kernel_totals import ResidentTotals
from hmd.sample.selection import OpenedSampler
from hmd.tick.stage_runner import StageRunner
from hmd.tick.tick import unseen_guests

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

PAGE_COUNT_S: Final = 10.0
"""Seconds between two counts of all pages by heat, which cost as much as a decision: in calm times
they wait for one, which shares their rates."""

KNOWN_SHARE: Final = 0.95
"""Share of memory that has to be found one by one until the sweep gets no more than its share."""

MAX_LOST_TICKS: Final = 30
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
        wait_for_kernels: bool = False,
    ) -> None:
        """Build the stages and open the endpoints; raises ``HmdError`` where one fails.

        With ``preload`` the kernels are loaded now, even if there is no process to follow. Where
        the cache lacks some, the first ticks follow none; with ``wait_for_kernels`` the start
        waits.
        """
        self._load, self._file, self._notifier, self._proc = load, file, notifier, proc
        self._log = log = logging.getLogger("hmd")
        self._warnings, self._target_log = OnceLogger(log), TargetLog(log)
        self._runner = StageRunner(log)
        self._configured = config = load()
        self.followed: Mapping[ProcessId, str] = {}
        self._counts: ResidencyCounts | None = None
        self._totals: ResidentTotals | None = None
        self._counted_s = float("-inf")
        self._saved_s = 0.0
        self._journal, self._ticks = MoveJournal(), TickWatch()
        self._stop = self._reload = False
        self._restored = self._not_restored = self._swap_failure = ""
        self._stopped_by = "its last tick"
        with contextlib.ExitStack() as undo:
            self._wakeup = WakeupFd()
            undo.callback(self._wakeup.close)
            store = AdminStore(settings.state_folder(config), proc)
            self.stages = stages = self._build_with_stored(config, store, sysfs)
            undo.callback(self.stages.close)
            modelled = stages.sampler.capabilities.modelled_clock
            self._waits = MemoryWaits.open(modelled=modelled, proc=proc, sysfs=sysfs)
            undo.callback(self._waits.close)
            self._kernels = KernelLoader(log)
            undo.callback(self._kernels.close)
            if preload or any(stages.watcher.scan().values()):
                # While the service manager waits for the start.
                policy = stages.config.decide.policy
                self._kernels.load(policy, notifier.alive, wait=wait_for_kernels)
            setting = settings.observer_setting(stages.config, file, stages.topology)
            self.observer = Observer(setting, stages.topology, stages.sampler, proc=proc)
            self._heat_map = HeatHistory(stages.topology)
            commands = AdminCommands(stages.admin, self, proc, store)
            self._history = HistoryRecorder(settings.state_folder(config), log)
            undo.callback(lambda: self._history.close(self.observer.latest))
            self._history.add_event(f"hmd {__version__} started; {self._restored or 'no requests'}")
            note = self._history.add_event
            self._control = CommandQueue(commands, self._wakeup.wake, log, proc, note)
            self._hints = HintReceiver(stages.hints, lambda: self.followed, proc)
            self._nodes = NodeWatch(sysfs)
            self._sampler_supervisor = SamplerSupervisor(log, sysfs)
            self._page_cache_demoter = PageCacheDemoter(log, proc, sysfs)
            self._drain_supervisor = DrainSupervisor(log, proc, sysfs)
            self._memory_limiter = MemoryLimiter(log)
            self._profiles = ProfileKeeper(log, proc)
            self._empty_targets = EmptyTargets(log)
            self._publish_control()
            latest, health = lambda: self.observer.latest, self._ticks.health
            answers = queries(latest, health, self._heat_map, self._history, self._hints, proc)
            self._endpoints = Endpoints(answers, self._control.handlers, latest, health)
            self._endpoints.open(config)
            self._profiles.configure(*settings.profile_store(config))
            undo.pop_all()
        self._runner.run(Stage.OBSERVE, self._warn, None)

    def run(self, ticks: int | None = None) -> None:
        """Tick until a signal stops the service, or ``ticks`` times.

        Whatever fails in a tick is logged, and the next tick follows. ``TransientError`` where
        ``MAX_LOST_TICKS`` in a row failed as a whole: a new process may do better.
        """
        with self._wakeup.on(SIGNALS, self._on_signal):
            stages = self.stages
            line = f"{len(stages.config.targets)} targets, sampler {stages.sampler.name}"
            self._notifier.ready(line)
            self._log.info("ready: %s", line)
            due_s, done, lost = time.monotonic(), 0, 0
            while not self._stop and (ticks is None or done < ticks):
                tick = self._runner.run(Stage.OBSERVE, lambda: self.tick(time.monotonic()), None)
                lost = lost + 1 if tick is None else 0
                if lost >= MAX_LOST_TICKS:
                    raise TransientError(f"{lost} ticks failed in a row: the log has the reason")
                done += 1
                if done != ticks:
                    # A tick that took too long delays the later ones, without a burst to catch up;
                    # one before its time, for a reload, is a tick's length before the next.
                    now_s = time.monotonic()
                    due_s = max(min(due_s, now_s) + self.stages.budget.tick_s, now_s)
                    self._wait(due_s)
            self._notifier.stopping()
            self._log.info("stopping after %s: pages stay where they are", self._stopped_by)

    def tick(self, now_s: float) -> TickRecord:
        """Run one tick with all that happens around it, in this order, each step guarded."""
        if self._reload:
            self._reload = False
            self.reload()
        self._serve_requests()
        self._target_log.summarise(now_s)
        runner = self._runner
        runner.begin()
        run, sample, observe = runner.run, Stage.SAMPLE, Stage.OBSERVE
        run(sample, self._follow_nodes, None)
        run(sample, lambda: self._replace_sampler(now_s), None)
        self.stages.meter.start(now_s, self._helpers_cpu_s)
        # Requests that need not wait are served while processes are read.
        track = partial(
            self.stages.track_processes,
            now_s,
            lambda: self._serve_requests(PROMPT),
            self._load_kernels,
        )
        changed = run(sample, track, False, Work.DISCOVERY)
        if changed:
            run(Stage.HEAT, lambda: self._adopt_processes(now_s), None)
        run(sample, lambda: self._explain_empty_targets(now_s, changed), None, Work.DISCOVERY)
        heat = self.stages.state.heat
        run(Stage.HEAT, lambda: self._memory_limiter.limit_detail(heat, now_s), None)

        run(Stage.HEAT, lambda: self._follow_profiles(now_s), None)
        record = self.stages.tick(now_s, runner)
        run(Stage.HEAT, lambda: self._profiles.observe(record), None, Work.SAMPLES)

        run(Stage.MIGRATE, lambda: self._demote_page_cache(now_s), None)
        run(Stage.MIGRATE, lambda: self._drain_supervisor.send_request(self.stages, now_s), None)
        self._sampler_supervisor.count_tick(failed=sample in runner.failed)
        run(observe, lambda: self._observe(record), None)
        run(observe, self._warn_of_guests, None)
        run(observe, lambda: self._log_swap(record.far.stopped), None)
        self.observer.record_observe_time(runner.seconds[observe], observe in runner.failed)
        run(observe, lambda: self._update_budget(record, changed), None)
        self._notifier.alive()
        self._ticks.record_tick(self.stages.budget.tick_s)
        if self._notifier.present:
            self._notifier.status(self._status_line())
        return record

    def close(self) -> None:
        """Close everything."""
        self._kernels.close()
        self._profiles.close()
        self._endpoints.close()
        self._history.add_event("stopped")
        self._history.close(self.observer.latest)
        self._drain_supervisor.close()
        self._page_cache_demoter.close()
        self._waits.close()
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

    def set_policy(self, name: str | None) -> None:
        """Plan with another policy than the configuration's; raises ``HmdError``.

        ``name`` is in the admin state already.
        """
        settings.with_policy(self._configured, name)
        self._rebuild(self._configured)

    def explain(self, process: ProcessId, address: int | None) -> dict[str, Any]:
        """Return why pages of a process are where they are; raises ``HmdError``."""
        stages = self.stages
        inputs, tick_s = stages.inputs(time.monotonic()), stages.budget.tick_s
        bindings = stages.bindings.of(process)
        found = explain(
            stages.state, inputs, tick_s, self._journal, process, address, bindings=bindings
        )
        return {**found, "former_runs": self._profiles.describe(process)}

    def reload(self) -> bool:
        """Load the configuration again; on any error the old one stays in force."""
        self._notifier.reloading()
        error: Exception | None = None
        try:
            config = self._load()
            self._rebuild(config)
            changes = settings.changes(self._configured, config)
            self._history.add_event(f"reloaded: {'; '.join(changes) or 'nothing changed'}")
            self._configured = config
        except Exception as caught:
            error = caught
            expected = isinstance(error, HmdError)
            for line in str(error).splitlines():
                self._log.error("reload: %s", line, exc_info=None if expected else error)
            self._log.error("reload failed: the old configuration stays in force")
        self.observer.record_reload(None if error is None else str(error))
        if error is None:
            self._log.info("reloaded %s", self._file)
            self._runner.run(Stage.OBSERVE, self._warn, None)
        self._notifier.ready(self._status_line())
        return error is None

    def _status_line(self) -> str:
        """Return what the daemon follows and has moved, for the service manager."""
        stages, admin, now = self.stages, self.stages.admin, self.observer.latest
        states = {
            "dry run": now.dry_run,
            "paused": admin.paused,
            f"node {format_ids(sorted(admin.drained))} drained": bool(admin.drained),
            "last reload failed": not now.reload.successful,
            "compiling kernels": now.compiling,
        }
        moved = (
            f"{len(stages.tracked.processes)} processes of {len(stages.config.targets)} targets, "
            f"sampler {stages.sampler.name}, {now.moves.promoted_bytes >> 20} MiB promoted, "
            f"{now.moves.demoted_bytes >> 20} MiB demoted"
        )
        return ", ".join([moved, *(name for name, is_true in states.items() if is_true)])

    def _build_with_stored(self, config: Config, store: AdminStore, sysfs: Path) -> Stages:
        """Build the first stages, with the admin requests that were in force before."""
        problems = []
        try:
            stored = store.load()
        except HmdError as error:
            problems.append(str(error))
            stored = AdminState()
        if stored.policy is not None and stored.policy not in registry.names():
            problems.append(f"policy {stored.policy}: there is none of this name")
            stored.policy = None
        stages = build(settings.with_policy(config, stored.policy), None, self._proc, sysfs)
        admin, nodes = stages.admin, {node.id for node in stages.topology.nodes}
        if stored.drained and not nodes - stored.drained:
            ids = format_ids(sorted(stored.drained))
            problems.append(f"drain of node {ids}: no node would be left")
        elif stored.drained:
            admin.drain(stored.drained)
        admin.paused, admin.policy = stored.paused, stored.policy
        admin.pins, admin.target_pins = stored.pins, stored.target_pins
        drop_stale_pins(admin, self._proc)
        self._restored, self._not_restored = describe(admin), "; ".join(problems)
        if self._restored:
            self._log.warning("restored from before the restart: %s", self._restored)
        for problem in problems:
            self._log.error("not restored: %s", problem)
        return stages

    def _rebuild(self, configured: Config, opened: OpenedSampler | None = None) -> None:
        """Build the stages again, with the admin state; on any error the old ones stay.

        ``opened`` is a sampler to use from now on.
        """
        old = self.stages
        config = settings.with_policy(configured, old.admin.policy)
        profiles = settings.profile_store(config)
        new = build(config, old, old.proc, old.sysfs, opened)
        try:
            self._endpoints.open(config)
        except BaseException:
            new.close(successor=old)
            raise
        old.close(successor=new)
        self._profiles.configure(*profiles)
        new.state.heat.set_idle_latencies(new.topology.latency_ns)
        self.stages = new
        if self.followed:
            self._runner.run(Stage.DECIDE, partial(self._load_kernels, wait=True), None)
        self._reconfigure_observer()
        if new.topology.tiers != old.topology.tiers:
            self._heat_map.set_topology(new.topology)

    def _reconfigure_observer(self) -> None:
        stages = self.stages
        setting = settings.observer_setting(stages.config, self._file, stages.topology)
        self.observer.reconfigure(setting, stages.topology, stages.sampler)

    def _load_kernels(self, *, wait: bool = False) -> bool:
        """Load the kernels of heat and of the policy; return False while they are compiled."""
        begun_s = time.thread_time()
        policy = self.stages.state.policy.name
        loaded = self._kernels.load(policy, self._notifier.alive, wait=wait)
        self.stages.meter.exclude(time.thread_time() - begun_s)
        return loaded

    def _serve_requests(self, only: Container[str] | None = None) -> None:
        """Execute the admin requests that wait, or ``only`` some commands, and publish the state.

        What users ask for does not count against the quota of the daemon.
        """
        begun_s = self._control.users_cpu_s
        publish = partial(self._runner.run, Stage.OBSERVE, self._publish_control, None)
        self._control.execute_waiting(publish, only)
        self.stages.meter.exclude(self._control.users_cpu_s - begun_s)

    def _publish_control(self) -> None:
        admin = self.stages.admin
        pins = [
            PinStatus(
                process.pid, process.start_ticks, self.followed.get(process, ""), pin.node, pin.uid
            )
            for process, pin in admin.pins.items()
        ]
        pins += [
            PinStatus(0, 0, name, pin.node, pin.uid) for name, pin in admin.target_pins.items()
        ]
        self.observer.set_admin_state(
            ControlStatus(
                paused=admin.paused,
                policy_override=admin.policy,
                drains=tuple(self._drain_supervisor.status(self.stages)),
                pins=tuple(pins[:MAX_LISTED]),
                pinned=len(pins),
                until_restart=tuple(self._until_restart()[:MAX_LISTED]),
                restored=self._restored,
                not_restored=self._not_restored,
                requests={
                    name: dict(counts)
                    for name, counts in (
                        *self._control.outcomes.items(),
                        ("hint", self._hints.outcomes),
                    )
                },
            )
        )

    def _until_restart(self) -> list[str]:
        """Return what of the admin state ends with the daemon."""
        admin = self.stages.admin
        named = set(admin.until_restart)
        names = [name for name, on in (("pause", admin.paused), ("policy", admin.policy)) if on]
        names += [f"node {node}" for node in sorted(admin.drained)]
        brief = [name for name in names if name in named]
        brief += [f"pid {p.pid}" for p, pin in admin.pins.items() if pin.until_restart]
        return brief + [f"target {n}" for n, pin in admin.target_pins.items() if pin.until_restart]

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
        sizes = {memory.node: memory.total_bytes for memory in stages.state.memory}
        nodes = tuple(
            replace(node, total_bytes=sizes.get(node.id) or node.total_bytes) for node in now.nodes
        )
        if nodes != now.nodes:
            stages.machine = replace(stages.machine, topology=replace(now, nodes=nodes))
            self._reconfigure_observer()

    def _replace_sampler(self, now_s: float) -> None:
        """Use another sampler where CPUs have changed, this one fails, or a better one works."""
        opened = self._sampler_supervisor.open_another(self.stages, now_s)
        if opened is not None:
            self._rebuild(self._configured, opened)

    def _adopt_processes(self, now_s: float) -> None:
        """Log which processes targets have gained and lost, and drop the pins of exited ones."""
        stages, before = self.stages, self.followed
        tracked = stages.tracked
        self.followed = dict(zip(tracked.processes, tracked.targets, strict=True))
        self._target_log.log_changes(before, self.followed, now_s)
        drop_stale_pins(stages.admin, stages.proc)

    def _follow_profiles(self, now_s: float) -> None:
        """Learn the programs of targets that learn, and plan by what former runs tell."""
        learns = settings.learning_targets(self.stages.config)
        learning = {process: name for process, name in self.followed.items() if name in learns}
        self._profiles.follow(learning, now_s)
        self.stages.priors = self._profiles.priors

    def _explain_empty_targets(self, now_s: float, changed: bool) -> None:
        reasons = self._empty_targets.explain(self.stages, now_s, changed=changed)
        self.observer.empty_reasons = reasons

    def _demote_page_cache(self, now_s: float) -> None:
        stages = self.stages
        self._page_cache_demoter.demote(
            settings.cache_settings(stages.config),
            stages.topology,
            now_s,
            damon_in_use=stages.sampler.capabilities.exclusive,
            paused=stages.admin.paused,
        )

    @property
    def _helpers_cpu_s(self) -> float:
        """CPU time so far of threads that work for ticks: the kernel's, page-out, profiles."""
        pageout_s = self.stages.state.pageout.cpu_s
        return self._page_cache_demoter.cpu_s + pageout_s + self._profiles.cpu_s

    def _update_budget(self, record: TickRecord, processes_changed: bool) -> None:
        """Add what the tick cost: what the next one may cost follows from it."""
        stages, migrate = self.stages, self.stages.config.migrate
        moves_are_many = 2 * record.moved_bytes >= migrate.rate * stages.config.tick > 0
        costs = stages.meter.measure(time.monotonic(), self._runner.cpu_s, self._helpers_cpu_s)
        saved_s = self.observer.latest.savings.net_s
        gain = stages.gain(record, saved_s - self._saved_s)
        self._saved_s = saved_s
        changed = processes_changed or moves_are_many
        totals = self._totals
        learning = totals is not None and totals.known_share < KNOWN_SHARE
        stages.budget.update(costs, record, load_changed=changed, gain=gain, learning=learning)
        self.observer.set_cpu_budget(stages.budget.status(stages.rescan_s))

    def _observe(self, record: TickRecord) -> None:
        stages, topology = self.stages, self.stages.topology
        heat = stages.state.heat
        by_heat = self._counts.heat_pages if self._counts else None
        due = record.now_s - self._counted_s >= PAGE_COUNT_S
        if by_heat is None or (due and (record.planned or not stages.budget.is_calm)):
            self._counted_s = record.now_s
            drop_stale_pins(stages.admin, stages.proc)
            by_heat = heat_pages(heat, topology)
            if heat.processes == record.processes:
                self._measure_demand(record, heat, topology)
        self._publish_control()
        self.observer.set_compiling(self._kernels.compiling)
        self.observer.profiles = self._profiles.status
        self.observer.demoting_nodes = self._page_cache_demoter.nodes
        totals = self._totals = stages.totals.complete(
            resident_pages(heat, topology),
            record.processes,
            stages.state.sweep.unswept,
            stages.watcher.resident_bytes,
            topology,
            record.now_s,
        )
        self.observer.resting = settings.resting_targets(stages.config, stages.local_time())
        self.observer.off_fastest = stages.off_fastest(record, totals.pages)
        self._counts = ResidencyCounts(totals.pages, by_heat, replace(heat.stats), totals.known)
        self._journal.add(record, topology)
        self._history.record(self.observer.observe(record, self._counts))
        self._heat_map.record(record, heat)
        for warning in refusal_warnings(stages.state.sweep.refusals):
            self._warnings.warn(warning)

    def _measure_demand(self, record: TickRecord, heat: HeatTable, topology: Topology) -> None:
        """Publish what fast memory is worth to targets."""
        rates = heat.history.rate
        self.observer.demand = measure_demand(
            heat,
            topology,
            record.targets,
            self.stages.state.cpu_use.max_cpus(record.processes),
            self.observer.target_uses(),
            sum(each.free_bytes for each in record.memory if each.node in topology.tiers[0])
            // PAGE_BYTES,
            self._waits.read(record.processes, record.targets, rates, record.now_s),
        )

    def _warn(self) -> None:
        """Log what limits hmd on this machine, each warning once."""
        if self.stages.sampler.capabilities.ranks_heat:
            self._log.info("%s", self.stages.opened.reason)
        for warning in start_warnings(self.stages, self._file):
            self._warnings.warn(warning)

    def _warn_of_guests(self) -> None:
        """Log which processes' pages stay where they are, as the sampler does not see guests."""
        stages = self.stages
        unseen = unseen_guests(stages.state, stages.inputs(0.0))
        for process in compress(stages.state.heat.processes, unseen):
            self._warnings.warn(
                f"pid {process.pid} runs virtual machines, whose accesses {stages.sampler.name}"
                " does not see: its pages stay where they are, unless sampler is damon or idle, or"
                " migrate.move_guests is set"
            )

    def _log_swap(self, stopped: str) -> None:
        """Log once why nothing is paged out, and once that it goes on."""
        if stopped and not self._swap_failure:
            self._log.error("%s: nothing is paged out until it works again", stopped)
        elif self._swap_failure and not stopped:
            self._log.warning("swap works again: page-out goes on")
        self._swap_failure = stopped

    def _wait(self, due_s: float) -> None:
        """Sleep until a time or a signal; serve admin requests meanwhile."""
        watchdog_s = (self._notifier.watchdog_s or 0.0) / 2
        while not (self._stop or self._reload):
            now_s, stages = time.monotonic(), self.stages
            left_s, look_s = due_s - now_s, stages.next_look_s - now_s
            if left_s <= 0:
                return
            if look_s <= 0 and self._runner.run(
                Stage.SAMPLE, partial(stages.sees_change, now_s), False
            ):
                return
            wait_s = min(left_s, look_s if look_s > 0 else LOOK_S, watchdog_s or left_s)
            if self._wakeup.wait(wait_s):
                self._runner.run(Stage.OBSERVE, self._serve_requests, None)
            self._notifier.alive()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stopped_by = signal.Signals(number).name
            self._stop = True
            self.stages.state.mover.stop()
