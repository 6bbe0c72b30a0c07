# SPDX-License-Identifier: MIT
"""The daemon in the guest: start, status queries, stop."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hmd.base.errors import HmdError
from hmd.base.paths import SOCKET
from hmd.base.units import PAGE_BYTES
from hmd.emulate.demo.measure import Meter, service
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import Job

TICK_S, TICK_LEAST_S = 12.0, 3.0
START_TIMEOUT_S = 300
RELOAD_TIMEOUT_S = 120

# Settings of the demonstration that differ from the defaults:
# tick      the daemon runs many times slower than on the modelled machine, as the programs do
# tick_least  a quarter of a tick after one in which a hot set moved
# headroom  the fast node is reduced to 1.1 hot sets, less than a share of the whole node
# period    fixed for each program, because the daemon's work on the slow emulated CPU exceeds any
#           quota
# cpu_quota a whole CPU, for the same reason: half of it bounds the scans and the sweep
_TARGET = """\
  - name: {name}
    cmdline: '^(\\S*/)?{name}\\S*( |$)'
"""
_CONFIG = """\
tick: {tick_s}s
tick_least: {tick_least_s}s
rescan: 2s
targets:
{targets}sample:
  sampler: emulated
  period: {period}
  cpu_quota: 100%
decide:
  policy: benefit
  benefit:
    headroom: 0%
    headroom_min: 256KiB
migrate:
  rate: 10GiB/s
observe:
  metrics: 127.0.0.1:9742
  socket: {socket}
"""


class DemoDaemon:
    """A running daemon, queried through its socket by ``hmd status`` and ``hmd heatmap``."""

    def __init__(self, machine: Machine, configure: Callable[[int], None], job: Job):
        self._machine, self._configure, self._job = machine, configure, job

    def sample_every(self, period: int) -> None:
        """Reload the configuration with another sampling period, in cache misses per sample."""
        self._configure(period)
        self._job.send_signal(signal.SIGHUP)
        give_up = time.monotonic() + RELOAD_TIMEOUT_S
        while self.ask("status")["sampler"]["period"] != period:
            if time.monotonic() > give_up:
                raise HmdError(f"the daemon in the guest does not sample every {period} misses")
            time.sleep(0.5)

    def ask(self, family: str, *words: str) -> dict[str, Any]:
        """Return the JSON of ``hmd FAMILY --json`` in the guest."""
        done = self._machine.run(
            service(
                [sys.executable, "-m", "hmd", family, "--socket", str(SOCKET), "--json", *words]
            ),
            timeout=120,
        )
        if done.returncode != 0:
            raise HmdError(f"hmd {family} in the guest: {done.stderr.strip()}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def moved(self, program: str) -> tuple[int, int]:
        """Return the pages of a target promoted and demoted; HmdError for an unknown target."""
        for target in self.ask("status")["targets"]:
            if target["name"] == program:
                promoted, demoted = target["promoted_bytes"], target["demoted_bytes"]
                return promoted // PAGE_BYTES, demoted // PAGE_BYTES
        raise HmdError(f"the daemon in the guest knows no target {program}")


@contextmanager
def running_daemon(
    machine: Machine, programs: Sequence[str], period: int, folder: Path, meter: Meter
) -> Iterator[DemoDaemon]:
    """Run ``hmd run`` for processes of these commands; the daemon stops at the end of the context.

    It samples every ``period`` cache misses at first. ``folder``, which is shared with the guest,
    receives the configuration and the log.
    """
    config, log = folder / "demo-hmd.yaml", folder / "demo-hmd.log"
    targets = "".join(_TARGET.format(name=name) for name in programs)

    def configure(period: int) -> None:
        config.write_text(
            _CONFIG.format(
                tick_s=TICK_S,
                tick_least_s=TICK_LEAST_S,
                targets=targets,
                period=period,
                socket=SOCKET,
            )
        )

    configure(period)
    machine.run(["mkdir", "-p", str(SOCKET.parent)], check=True)
    command = [sys.executable, "-m", "hmd", "run", "--preload", "--config", str(config)]
    with log.open("wb") as stream:
        with meter.paused():
            job = machine.start(
                service(["nice", "-n", "10", *command]),
                stdout=stream.write,
                stderr=stream.write,
            )
            _wait_for_socket(machine, job, stream)
        try:
            yield DemoDaemon(machine, configure, job)
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait(60)


def _wait_for_socket(machine: Machine, job: Job, log: BinaryIO) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while machine.run(["test", "-S", str(SOCKET)]).returncode != 0:
        if job.poll() is not None or time.monotonic() > give_up:
            log.flush()
            last = last_line(Path(log.name))
            raise HmdError(f"the daemon did not start in the guest: {last}")
        time.sleep(0.5)


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
