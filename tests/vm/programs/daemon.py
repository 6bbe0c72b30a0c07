"""Run the daemon in the guest on a program that lies on the slow node, and print what happens.

    daemon.py GATHER FOLDER

One JSON line at the end; what is right is in tests/vm/test_daemon.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hmd.errors import UnreachableError
from hmd.machine.emulated import SharedMemory, find_device
from hmd.observe.client import ask

MIB = 16
ADDRESS = "127.0.0.1:9742"
PATIENCE_S = 300

CONFIG = """\
tick: 2s
rescan: 4s
targets:
- name: gather
  exe: gather
sample:
  period: 97
  cpu_quota: 20%
migrate:
  rate: 100MiB/s
"""


class Daemon:
    """The daemon, beside this program on CPU 0."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "run/hmd.sock"
        self.config = folder / "hmd.yaml"
        self.log = folder / "log"
        self.text = CONFIG + f"observe: {{metrics: '{ADDRESS}', socket: {self.socket}}}\n"
        self.config.write_text(self.text)
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "hmd", "run", "--config", str(self.config)], stderr=log
            )
        self.when(lambda status: status["ticks"] > 0)

    def status(self) -> dict[str, Any] | None:
        """Return the status of this very process, None while it does not answer."""
        try:
            status = ask(self.socket, "status", timeout_s=90)
        except UnreachableError:
            return None
        return status if status["pid"] == self.popen.pid else None

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {
            sample.name
            + "".join(
                f" {key}={value}" for key, value in sorted(sample.labels.items())
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def when(self, true_of: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the first status of which something is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        status = None
        while time.monotonic() < deadline_s and self.popen.poll() is None:
            status = self.status()
            if status is not None and true_of(status):
                return status
            time.sleep(1)
        raise SystemExit(f"waited in vain; {status}; log: {self.log.read_text()}")


def on_node0(status: dict[str, Any]) -> int:
    return sum(process["resident_bytes"][0] for process in status["processes"])


def hot(status: dict[str, Any]) -> bool:
    """Most of the program is on the fast node, and its accesses are served there."""
    share = status["targets"][0]["fast_share"] or 0.0
    return on_node0(status) > (MIB << 20) * 3 // 4 and share > 0.75


def main() -> None:
    gather, folder = sys.argv[1], Path(sys.argv[2])
    device = find_device()
    assert device is not None
    machine = SharedMemory.open(device)
    found: dict[str, Any] = {}
    program = subprocess.Popen(
        ["numactl", "--physcpubind=1", "--membind=1", gather, str(MIB)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.readline()
    os.sched_setaffinity(0, {0})

    daemon = Daemon(folder)
    found["first"] = daemon.when(lambda s: s["processes"])
    # Memory has two speeds, and misses are sampled, only while modelled time runs; the rest is
    # many times faster without it.
    machine.running = True
    found["promoted"] = daemon.when(hot)
    machine.running = False
    # Pages are counted by heat every ten seconds (hmd.daemon.service, CENSUS_S).
    daemon.when(lambda s: s["uptime_s"] > found["promoted"]["uptime_s"] + 15)
    found["metrics"] = daemon.metrics()

    daemon.popen.kill()
    daemon.popen.wait()
    daemon.start()
    found["restarted"] = daemon.when(lambda s: on_node0(s) > (MIB << 20) * 3 // 4)

    daemon.config.write_text(daemon.text + "tick: soon\n")
    daemon.popen.send_signal(signal.SIGHUP)
    found["broken"] = daemon.when(lambda s: not s["reload"]["successful"])
    found["broken_metrics"] = daemon.metrics()
    found["after_broken"] = daemon.when(lambda s: s["ticks"] > found["broken"]["ticks"] + 1)

    daemon.config.write_text(daemon.text.replace("rate: 100MiB/s", "rate: 50MiB/s"))
    daemon.popen.send_signal(signal.SIGHUP)
    found["mended"] = daemon.when(lambda s: s["reload"]["successful"])

    program.kill()
    program.wait()
    found["exited"] = daemon.when(lambda s: not s["processes"])
    daemon.popen.terminate()
    found["code"] = daemon.popen.wait(60)
    found["socket_left"] = daemon.socket.exists()
    found["log"] = daemon.log.read_text()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
