# SPDX-License-Identifier: MIT
"""A daemon as its service runs it: another user, the unit's capabilities, few tasks and files.

RLIMIT_NPROC stands for the unit's TasksMax: this user has no other processes. It has the unit's
niceness and competes for CPUs with all other processes: in no control group of its own, where a
unit has its share whatever other users run.

The service of ``hmd run``, with the cost of each tick and of its stop measured.

``python -m bench.hostile.confined_daemon CONFIG RESULT`` runs it until SIGTERM and writes JSON.
Costs are CPU time of the process with all its threads, so that a busy host does not change them.
They begin when the compiled kernels are loaded, which takes as long whatever the neighbours are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.scale.plan_memory import peak_mib
from hmd.base.errors import HmdError
from hmd.config import load
from hmd.control.client import ask
from hmd.daemon.log import start_log
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier
from hmd.metrics.tick_record import TickRecord
from hmd.policy import registry
from hmd.policy.registry import warm_apart

UNIT: Final = Path(__file__).parents[2] / "systemd/hmd.service"
DAEMON_UID: Final = 64990
MAX_TASKS: Final = 64
MAX_FILES: Final = 1024
START_S: Final = 300.0
KERNELS: Final = Path(__file__).parents[2] / "build/hostile/kernels"


@dataclass(frozen=True, slots=True)
class ConfinedDaemon:
    """A running daemon: its socket, the address of its metrics, its log."""

    pid: int
    socket: Path
    metrics_port: int
    log: Path

    def status(self) -> dict[str, Any]:
        """Return its status."""
        return ask(self.socket, "status", timeout_s=30)


@contextmanager
def confined_daemon(targets: list[dict[str, Any]], metrics_port: int) -> Iterator[ConfinedDaemon]:
    """Run a daemon with the sampler ``faults`` until the end; raises ``HmdError``."""
    with tempfile.TemporaryDirectory(prefix="hmd-hostile-") as name:
        folder = Path(name)
        run, cache = folder / "run", folder / "cache"
        folder.chmod(0o755)
        run.mkdir(mode=0o755)
        config, log = folder / "hmd.yaml", folder / "log"
        document = {
            "targets": targets,
            "sample": {"sampler": "faults"},
            "observe": {"metrics": f"127.0.0.1:{metrics_port}", "socket": str(run / "hmd.sock")},
        }
        config.write_text(json.dumps(document))  # JSON is YAML
        environ = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
        KERNELS.mkdir(parents=True, exist_ok=True)
        warm_apart({"NUMBA_CACHE_DIR": str(KERNELS)})
        shutil.copytree(KERNELS, cache)
        for path in (run, *cache.rglob("*"), cache):
            shutil.chown(path, DAEMON_UID, DAEMON_UID)
        command = [
            *("prlimit", f"--nproc={MAX_TASKS}", f"--nofile={MAX_FILES}"),
            *_as_service(),
            *(os.path.realpath(sys.executable), "-m", "hmd", "run", "--config", str(config)),
        ]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with log.open("wb") as stream, subprocess.Popen(command, stderr=stream, env=environ) as own:
            try:
                _wait_ready(own, log)
                yield ConfinedDaemon(own.pid, run / "hmd.sock", metrics_port, log)
            finally:
                own.terminate()
                try:
                    own.wait(30)
                except subprocess.TimeoutExpired:
                    own.kill()


def _as_service() -> list[str]:
    """Return the command that runs another as the unit's user, nice, with its capabilities."""
    names = [name.removeprefix("CAP_").lower() for name in _of_unit("AmbientCapabilities").split()]
    given = ",".join(f"+{name}" for name in names)
    return [
        *("nice", "-n", _of_unit("Nice")),
        *("setpriv", f"--reuid={DAEMON_UID}", f"--regid={DAEMON_UID}", "--clear-groups"),
        *(f"--inh-caps={given}", f"--ambient-caps={given}", f"--bounding-set=-all,{given}"),
        "--no-new-privs",
    ]


def _of_unit(option: str) -> str:
    """Return the value of an option of the unit."""
    found = re.search(rf"^{option}=(.*)$", UNIT.read_text(), re.MULTILINE)
    if found is None:
        raise HmdError(f"{UNIT} has no {option}")
    return found[1]


def _wait_ready(daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while "ready: " not in log.read_text():
        if daemon.poll() is not None or time.monotonic() > deadline_s:
            raise HmdError(f"the daemon did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


class MeasuredService(Service):
    """A service that keeps the times of its ticks, in seconds."""

    tick_cpu_s: list[float]
    failed: int = 0
    stop_cpu_s: float = 0.0

    def tick(self, now_s: float) -> TickRecord:
        """Run one tick, and note its CPU time."""
        begun_s = time.process_time()
        record = super().tick(now_s)
        self.tick_cpu_s.append(time.process_time() - begun_s)
        self.failed += len(record.failed)
        return record

    def _on_signal(self, number: int) -> None:
        self.stop_cpu_s = time.process_time()
        super()._on_signal(number)


def main() -> None:
    """Run the service and write what it cost."""
    config, result = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    start_log("info")
    service = MeasuredService(lambda: load(config), str(config), Notifier(os.environ))
    service.tick_cpu_s = []
    registry.warm()
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    try:
        service.run()
    finally:
        elapsed_s = time.monotonic() - begun_s
        cpu_s = service.stop_cpu_s - begun_cpu_s
        service.close()
    measured = {
        "ticks": len(service.tick_cpu_s),
        "failed": service.failed,
        "worst_tick_s": max(service.tick_cpu_s),
        "tick_cpu_s": service.tick_cpu_s,
        "cpu_s": cpu_s,
        "elapsed_s": elapsed_s,
        "stop_cpu_s": time.process_time() - service.stop_cpu_s,
        "peak_rss_mib": peak_mib(),
        "processes": len(service.stages.tracked.processes),
        "reported_bytes": sum(
            sum(target.resident_bytes) for target in service.observer.latest.targets
        ),
        "pages": int(service.stages.state.heat.resident_pages(1)[0].sum()),
    }
    result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
