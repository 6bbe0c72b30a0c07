# SPDX-License-Identifier: MIT
"""hmd in the guest, with one of its policies at the policy's defaults.

Settings that differ from the defaults of the daemon:
tick, rescan   a tick is as short as the daemon's work allows, because the guest's clock runs about
               a hundred times slower than modelled time, and the daemon with it
headroom       fixed, scaled to a fast node of a few megabytes: 2 % of 3 MiB
rate           no limit: a limit protects other programs, and there are none
quota          a whole CPU: an emulated CPU runs the daemon some twenty times more slowly, and under
               cpu_quota at its default the fixed part of a tick lengthens the sampling period to
               the maximum (docs/lab/2026-11-page-cache.md)

The sampling period is the one of the service: records may take 1 % of the program's time
(``sample.overhead``). Only experiments fix it.

DAMON as a tiering system: the DAMOS actions migrate_hot and migrate_cold, set up by damo.

The set-up follows damo's scripts/mem_tier.sh. One kdamond monitors the fast node's physical
addresses and demotes regions without accesses that are not young; another monitors those of the
slow node and promotes young regions accessed in at least 5 % of checks; each at most 200 MB per
second. The script also uses features that Linux 6.12 lacks: goals for the fast node's free and
used memory (6.16), replaced here by the age of cold regions, and auto-tuned intervals (6.17),
replaced by fixed ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP, SIGTERM
from types import MappingProxyType
from typing import Any, Final

from bench.compare.testbed import GROUP, Testbed
from hmd.base.errors import HmdError, MissingError
from hmd.base.paths import SOCKET
from hmd.emulate.demo.daemon import last_line
from hmd.emulate.demo.measure import FAST_NODE, SLOW_NODE, service
from hmd.emulate.vm.guest import Job
from hmd.policy import registry

SETTLE_S = 3.0
"""Time for regions to split to the maximum: each aggregation can double their number."""

QUOTA = ("--damos_quota_interval", "1s", "--damos_quota_space", "200MB")
HEADROOM_BYTES = 64 << 10
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

_ASK = """\
import json, pathlib, sys
from hmd.control.client import ask
print(json.dumps(ask(pathlib.Path(sys.argv[1]), "status", timeout_s=60)))
"""

_ADMIN = """\
import pathlib, sys
from hmd.control.client import send_admin_request
send_admin_request(pathlib.Path(sys.argv[1]), sys.argv[2])
"""

CACHE = {"cache_headroom": "100%", "cache_age": "500ms"}
"""All of the fast node is for programs, and page cache on it is unused as soon as for DAMON."""

_START_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 120
_READY, _RELOADED, _NOT_RELOADED = "info: ready: ", "info: reloaded ", "error: reload"

EXPERIMENT_PERIOD = 83
"""The period of simulations that have no run in the guest to take one from."""


@dataclass(frozen=True, slots=True)
class DamonSettings:
    """Monitoring attributes of DAMON.

    ``intervals`` are the sampling, aggregation and operations-update intervals; ``regions`` the
    minimum and maximum; regions without accesses for ``cold_age`` are demoted.
    """

    intervals: tuple[str, str, str]
    regions: tuple[str, str]
    cold_age: str


WATCH = DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "500ms")
"""The best of the settings in docs/lab/2026-11-comparison-settings.md."""


def scheme_words(how: DamonSettings = WATCH) -> tuple[str, ...]:
    """Return the arguments of ``damo start``."""
    watch = (
        *("--monitoring_intervals", *how.intervals),
        *("--monitoring_nr_regions_range", *how.regions),
    )
    demote = (
        *("--numa_node", str(FAST_NODE), *watch),
        *("--damos_action", "migrate_cold", str(SLOW_NODE), "--damos_access_rate", "0%", "0%"),
        *("--damos_age", how.cold_age, "max", *QUOTA),
        *("--damos_filter", "reject", "young"),
    )
    promote = (
        *("--numa_node", str(SLOW_NODE), *watch),
        *("--damos_action", "migrate_hot", str(FAST_NODE), "--damos_access_rate", "5%", "max"),
        *QUOTA,
        *("--damos_filter", "reject", "none", "young"),
    )
    counts = ("--damos_nr_filters", "--nr_targets", "--nr_schemes", "--nr_ctxs")
    return (*demote, *promote, *(word for count in counts for word in (count, "1", "1")))


@contextmanager
def running_damon(stage: Testbed, how: DamonSettings = WATCH) -> Iterator[None]:
    """Run DAMON's schemes for programs that start later.

    Raises MissingError where damo is not installed.
    """
    damo = Path(sys.executable).with_name("damo")
    if not damo.exists():
        raise MissingError("damo is not installed: run `make setup` (PyPI package damo)")
    stage.sh("mount -t tracefs tracefs /sys/kernel/tracing 2>&-; true")  # damo reads tracefs there
    stage.sh(" ".join([str(damo), "start", *scheme_words(how)]))
    stage.move_kernel_threads()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        stage.sh(f"{damo} stop")


@dataclass(frozen=True, slots=True)
class Pace:
    """The daemon's tick in seconds of the guest's clock, and its sampling period in misses.

    Without a period, ``sample.overhead`` sets it. ``kernel_mode``: accesses of the kernel are
    sampled too. Pages that are idle for ``pageout_s`` go out, unless the program waits for memory
    for more than a share ``pageout_pressure`` of its time, without it the default. ``profiles`` is
    the guest's folder of what the daemon learns of programs, if it does.
    """

    tick_s: float
    period: int | None = None
    kernel_mode: bool = True
    pageout_s: float | None = None
    pageout_pressure: float | None = None
    profiles: str = ""


PACE = Pace(0.25)


def configuration(
    policy: str,
    pace: Pace = PACE,
    settings: Mapping[str, Any] = NO_SETTINGS,
    metrics: str = "off",
) -> dict[str, Any]:
    """Return the daemon's configuration for a policy; ConfigError for an unknown name.

    ``settings`` are those of the policy that differ from its defaults, ``metrics`` an address.
    """
    far = {} if pace.pageout_s is None else {"pageout": f"{pace.pageout_s}s"}
    pressure = pace.pageout_pressure
    held = {} if pressure is None else {"pageout_pressure": f"{pressure:.0%}"}
    learning = {"learn": True, "profiles": {"directory": pace.profiles}} if pace.profiles else {}
    return learning | {
        "tick": f"{pace.tick_s}s",
        "rescan": f"{pace.tick_s / 2}s",  # in every tick
        "targets": [{"name": "program", "cgroup": GROUP} | held],
        "sample": {"sampler": "emulated"} | _sampling(pace),
        "decide": {"policy": policy} | far | _policy_settings(policy, settings),
        "migrate": {"rate": "10GiB/s"} | CACHE,
        "observe": {"metrics": metrics, "socket": str(SOCKET)},
    }


def _sampling(pace: Pace) -> dict[str, Any]:
    own = {"period": pace.period} if pace.period else {}
    return {"cpu_quota": "100%"} | own | ({} if pace.kernel_mode else {"kernel_mode": False})


def _policy_settings(policy: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    known = set(registry.info(policy).settings_type.model_fields)
    scaled = {"headroom": "0%", "headroom_min": f"{HEADROOM_BYTES >> 10}KiB"}
    every = (scaled if "headroom_min" in known else {}) | dict(settings)
    return {policy: every} if every else {}


@dataclass(frozen=True, slots=True)
class DaemonProgress:
    """Progress of the daemon, from its status; ``period`` and ``resident_bytes`` are current."""

    uptime_s: float
    ticks: int
    cpu_s: float
    samples: int
    period: int
    resident_bytes: int
    records: int = 0
    kernel_addresses: int = 0


class GuestDaemon:
    """The running daemon; ``use`` changes its policy."""

    def __init__(
        self, stage: Testbed, policy: str, pace: Pace, config: Path, log: Path, job: Job
    ) -> None:
        self._stage, self._pace = stage, pace
        self._written = configuration(policy, pace)
        self._config, self._log, self._job = config, log, job

    def use(
        self,
        policy: str,
        settings: Mapping[str, Any] = NO_SETTINGS,
        pace: Pace | None = None,
    ) -> None:
        """Reload the daemon's configuration with this policy; HmdError where that fails."""
        wanted = configuration(policy, pace or self._pace, settings)
        if wanted == self._written:
            return
        before = self.count_in_log(_RELOADED)
        self._config.write_text(json.dumps(wanted))
        self._job.send_signal(SIGHUP)
        give_up = time.monotonic() + _START_TIMEOUT_S
        while self.count_in_log(_RELOADED) == before:
            if time.monotonic() > give_up or self.count_in_log(_NOT_RELOADED):
                raise HmdError(f"the daemon did not take policy {policy}: {last_line(self._log)}")
            self.check()
            time.sleep(0.2)
        self._written = wanted

    def _status(self) -> dict[str, Any]:
        done = self._stage.machine.run(service([sys.executable, "-c", _ASK, str(SOCKET)]))
        if done.returncode:
            raise HmdError(f"the daemon in the guest does not answer: {done.stderr.strip()}")
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def hints(self) -> int:
        """Return how many hints of programs the daemon has taken."""
        taken: int = self._status()["control"]["requests"]["hint"]["done"]
        return taken

    def progress(self) -> DaemonProgress:
        """Return the daemon's progress; HmdError where it does not answer."""
        status = self._status()
        sampler = status["sampler"]
        return DaemonProgress(
            uptime_s=status["uptime_s"],
            ticks=status["ticks"],
            cpu_s=status["cpu_s"],
            samples=sampler["samples"],
            period=sampler["period"],
            resident_bytes=status["resident_bytes"],
            records=sampler["records"],
            kernel_addresses=sampler["kernel_addresses"],
        )

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Let the daemon move pages, from ``SETTLE_S`` before; otherwise it is paused.

        Without that it demotes the page cache that the fast node is being filled with.
        """
        self._order("resume")
        time.sleep(SETTLE_S)
        try:
            yield
        finally:
            self._order("pause")

    def pause(self) -> None:
        """Let the daemon move no pages until ``moving``."""
        self._order("pause")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the daemon and its sampling, as if it were not there, and let it go on."""
        self._job.send_signal(SIGSTOP)
        self._stage.machine.shared.stop_sampling()
        try:
            yield
        finally:
            self._job.send_signal(SIGCONT)

    def _order(self, command: str) -> None:
        done = self._stage.machine.run(
            service([sys.executable, "-c", _ADMIN, str(SOCKET), command])
        )
        if done.returncode:
            raise HmdError(f"the daemon in the guest does not {command}: {done.stderr.strip()}")

    def check(self) -> None:
        """Raise HmdError if the daemon has ended."""
        if self._job.poll() is not None:
            raise HmdError(f"the daemon in the guest ended: {last_line(self._log)}")

    def count_in_log(self, text: str) -> int:
        """Return the number of occurrences of a text in the daemon's log."""
        return self._log.read_text(errors="replace").count(text)


@contextmanager
def running_daemon(
    stage: Testbed,
    policy: str,
    pace: Pace = PACE,
    *,
    metrics: str = "off",
    node: int = SLOW_NODE,
) -> Iterator[GuestDaemon]:
    """Run ``hmd run`` on the service CPU, in a node's memory; HmdError where it does not start."""
    config, log = stage.folder / "hmd.yaml", stage.folder / "hmd.log"
    config.write_text(json.dumps(configuration(policy, pace, metrics=metrics)))  # JSON is YAML
    stage.sh(f"mkdir -p {SOCKET.parent}")
    command = [sys.executable, "-m", "hmd", "run", "--preload", "--config", str(config)]
    with log.open("wb", buffering=0) as stream:
        started = service(command, node)
        job = stage.machine.start(started, stdout=stream.write, stderr=stream.write)
        try:
            running = GuestDaemon(stage, policy, pace, config, log, job)
            _wait_until_ready(running, log)
            running.pause()
            yield running
        finally:
            job.send_signal(SIGTERM)
            job.wait(_STOP_TIMEOUT_S)


def _wait_until_ready(running: GuestDaemon, log: Path) -> None:
    give_up = time.monotonic() + _START_TIMEOUT_S
    while not running.count_in_log(_READY):
        if time.monotonic() > give_up:
            raise HmdError(f"the daemon did not start in the guest: {last_line(log)}")
        running.check()
        time.sleep(0.2)
