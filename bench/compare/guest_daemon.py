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
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP, SIGTERM
from types import MappingProxyType
from typing import Any, Final

from bench.compare.guest_damon import SETTLE_S
from bench.compare.testbed import GROUP, Testbed
from hmd.decide import registry
from hmd.emulate.demo.demo_daemon import last_line
from hmd.emulate.demo.variants import service
from hmd.emulate.virtual_machine.guest_agent import Job
from hmd.errors import HmdError

HEADROOM_BYTES = 64 << 10
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
SOCKET = "/run/hmd/hmd.sock"
_ASK = """\
import json, pathlib, sys
from hmd.control.client import ask
print(json.dumps(ask(pathlib.Path(sys.argv[1]), "status", timeout_s=60)))
"""
_ADMIN = """\
import pathlib, sys
from hmd.control.client import send_admin_request
send_admin_request(pathlib.Path(sys.argv[1]), sys.argv[2], timeout_s=60)
"""
CACHE = {"cache_headroom": "100%", "cache_age": "500ms"}
"""All of the fast node is for programs, and page cache on it is unused as soon as for DAMON."""
_START_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 120
_READY, _RELOADED, _NOT_RELOADED = "info: ready: ", "info: reloaded ", "error: reload"


@dataclass(frozen=True, slots=True)
class Pace:
    """The daemon's tick in seconds of the guest's clock, and its sampling period in misses.

    Without a period, ``sample.overhead`` sets it.
    """

    tick_s: float
    period: int | None = None


PACE = Pace(0.25)

EXPERIMENT_PERIOD = 83
"""The period of simulations that have no run in the guest to take one from."""


def configuration(
    policy: str, pace: Pace = PACE, settings: Mapping[str, Any] = NO_SETTINGS
) -> dict[str, Any]:
    """Return the daemon's configuration for a policy; ConfigError for an unknown name.

    ``settings`` are those of the policy that differ from its defaults.
    """
    return {
        "tick": f"{pace.tick_s}s",
        "rescan": f"{pace.tick_s / 2}s",  # in every tick
        "targets": [{"name": "program", "cgroup": GROUP}],
        "sample": {"sampler": "emulated"} | _sampling(pace),
        "decide": {"policy": policy} | _policy_settings(policy, settings),
        "migrate": {"rate": "10GiB/s"} | CACHE,
        "observe": {"metrics": "off", "socket": SOCKET},
    }


def _sampling(pace: Pace) -> dict[str, Any]:
    return {"cpu_quota": "100%"} | ({"period": pace.period} if pace.period else {})


def _policy_settings(policy: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(registry.settings_type(policy))}
    scaled = {"headroom": "0%", "headroom_min": f"{HEADROOM_BYTES >> 10}KiB"}
    every = (scaled if "headroom_bytes" in known else {}) | dict(settings)
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


class GuestDaemon:
    """The running daemon; ``use`` changes its policy."""

    def __init__(
        self, stage: Testbed, policy: str, pace: Pace, config: Path, log: Path, job: Job
    ) -> None:
        self._stage, self._pace = stage, pace
        self._written = configuration(policy, pace)
        self._config, self._log, self._job = config, log, job

    def use(self, policy: str, settings: Mapping[str, Any] = NO_SETTINGS) -> None:
        """Reload the daemon's configuration with this policy; HmdError where that fails."""
        wanted = configuration(policy, self._pace, settings)
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

    def progress(self) -> DaemonProgress:
        """Return the daemon's progress; HmdError where it does not answer."""
        done = self._stage.machine.run(service([sys.executable, "-c", _ASK, SOCKET]))
        if done.returncode:
            raise HmdError(f"the daemon in the guest does not answer: {done.stderr.strip()}")
        status = json.loads(done.stdout)
        sampler = status["sampler"]
        return DaemonProgress(
            uptime_s=status["uptime_s"],
            ticks=status["ticks"],
            cpu_s=status["cpu_s"],
            samples=sampler["samples"],
            period=sampler["period"],
            resident_bytes=status["resident_bytes"],
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
        done = self._stage.machine.run(service([sys.executable, "-c", _ADMIN, SOCKET, command]))
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
def running_daemon(stage: Testbed, policy: str, pace: Pace = PACE) -> Iterator[GuestDaemon]:
    """Run ``hmd run`` on the service CPU; HmdError where it does not start."""
    config, log = stage.folder / "hmd.yaml", stage.folder / "hmd.log"
    config.write_text(json.dumps(configuration(policy, pace)))  # JSON is YAML
    stage.sh(f"mkdir -p {Path(SOCKET).parent}")
    command = [sys.executable, "-m", "hmd", "run", "--preload", "--config", str(config)]
    with log.open("wb", buffering=0) as stream:
        job = stage.machine.start(service(command), stdout=stream.write, stderr=stream.write)
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
