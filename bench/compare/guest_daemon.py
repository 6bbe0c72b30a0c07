"""hmd in the guest, with one of its policies at that policy's own defaults.

What differs from the defaults of the daemon, and why:
tick, rescan   the guest's clock runs some hundred times slower than modelled time, and the
               daemon's work is as much slower: a tick is as short as that allows
period         fixed: the emulated PMU's own cost is nothing, and the daemon's work in emulation
               would use up any quota; of the paces that were tried this did best
               (bench/compare/emulated_settings.py)
headroom       the fast node is cut to megabytes; of three, 2 % are left free, as by default
rate           no limit: a limit is for neighbours, and here is none
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

from bench.compare.testbed import GROUP, Testbed
from hmd.decide import registry
from hmd.emulate.demo.variants import service
from hmd.emulate.guest_agent import Job
from hmd.errors import HmdError

HEADROOM_BYTES = 64 << 10
SOCKET = "/run/hmd/hmd.sock"
_ASK = """\
import json, pathlib, sys
from hmd.control.client import ask
print(json.dumps(ask(pathlib.Path(sys.argv[1]), "status", timeout_s=60)))
"""
_START_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 120
_READY, _RELOADED, _NOT_RELOADED = "info: ready: ", "info: reloaded ", "error: reload"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the daemon ticks, by the guest's clock, and of how many misses it samples one."""

    tick_s: float
    period: int


PACE = Pace(0.25, 83)


def configuration(policy: str, pace: Pace = PACE) -> dict[str, Any]:
    """Return the daemon's configuration for a policy; ConfigError for an unknown name."""
    return {
        "tick": f"{pace.tick_s}s",
        "rescan": f"{pace.tick_s / 2}s",  # looked at in every tick
        "targets": [{"name": "program", "cgroup": GROUP}],
        "sample": {"sampler": "emulated", "period": pace.period},
        "decide": {"policy": policy} | _scaled_headroom(policy),
        "migrate": {"rate": "10GiB/s"},
        "observe": {"metrics": "off", "socket": SOCKET},
    }


def _scaled_headroom(policy: str) -> dict[str, Any]:
    settings = {field.name for field in fields(registry.settings_type(policy))}
    if "headroom_bytes" not in settings:
        return {}
    return {policy: {"headroom": "0%", "headroom_min": f"{HEADROOM_BYTES >> 10}KiB"}}


@dataclass(frozen=True, slots=True)
class DaemonProgress:
    """What the daemon has done since it started, by its status."""

    uptime_s: float
    ticks: int


class GuestDaemon:
    """The running daemon; ``use`` gives it another policy."""

    def __init__(
        self, stage: Testbed, policy: str, pace: Pace, config: Path, log: Path, job: Job
    ) -> None:
        self._stage, self._policy, self._pace = stage, policy, pace
        self._config, self._log, self._job = config, log, job

    def use(self, policy: str) -> None:
        """Let it reload its configuration with this policy; HmdError where it does not."""
        if policy == self._policy:
            return
        before = self.told(_RELOADED)
        self._config.write_text(_text(policy, self._pace))
        self._job.send_signal(SIGHUP)
        give_up = time.monotonic() + _START_TIMEOUT_S
        while self.told(_RELOADED) == before:
            if time.monotonic() > give_up or self.told(_NOT_RELOADED):
                raise HmdError(f"the daemon did not take policy {policy}: {_last_line(self._log)}")
            self.check()
            time.sleep(0.2)
        self._policy = policy

    def progress(self) -> DaemonProgress:
        """Return what it has done; HmdError where it does not answer."""
        done = self._stage.machine.run(service([sys.executable, "-c", _ASK, SOCKET]))
        if done.returncode:
            raise HmdError(f"the daemon in the guest does not answer: {done.stderr.strip()}")
        status = json.loads(done.stdout)
        return DaemonProgress(status["uptime_s"], status["ticks"])

    def check(self) -> None:
        """Raise HmdError where it has ended."""
        if self._job.poll() is not None:
            raise HmdError(f"the daemon in the guest ended: {_last_line(self._log)}")

    def told(self, text: str) -> int:
        """Return how often its log has a text."""
        return self._log.read_text(errors="replace").count(text)


@contextmanager
def running_daemon(stage: Testbed, policy: str, pace: Pace = PACE) -> Iterator[GuestDaemon]:
    """Run ``hmd run`` beside the programs; HmdError where it does not start."""
    config, log = stage.folder / "hmd.yaml", stage.folder / "hmd.log"
    config.write_text(_text(policy, pace))
    stage.sh(f"mkdir -p {Path(SOCKET).parent}")
    command = [sys.executable, "-m", "hmd", "run", "--config", str(config)]
    with log.open("wb", buffering=0) as stream:
        job = stage.machine.start(service(command), stdout=stream.write, stderr=stream.write)
        try:
            running = GuestDaemon(stage, policy, pace, config, log, job)
            _wait_until_ready(running, log)
            yield running
        finally:
            job.send_signal(SIGTERM)
            job.wait(_STOP_TIMEOUT_S)


def _text(policy: str, pace: Pace) -> str:
    return json.dumps(configuration(policy, pace))  # JSON is YAML


def _wait_until_ready(running: GuestDaemon, log: Path) -> None:
    give_up = time.monotonic() + _START_TIMEOUT_S
    while not running.told(_READY):
        if time.monotonic() > give_up:
            raise HmdError(f"the daemon did not start in the guest: {_last_line(log)}")
        running.check()
        time.sleep(0.2)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
