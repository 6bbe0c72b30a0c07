# SPDX-License-Identifier: MIT
"""Run the daemon in the guest under systemd, on another user's program that lies on the slow node.

    daemon.py GATHER RULES

A real Prometheus, with the alert rules of a file, scrapes it while pages move. One JSON line at
the end; tests/vm/dram_pm/test_daemon.py and test_prometheus.py check it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scraped  # type: ignore[import-not-found]  # in the same folder as this program
from prometheus_client.parser import text_string_to_metric_families

from bench.monitoring.prometheus import Prometheus
from hmd.base.errors import UnreachableError
from hmd.base.paths import CONFIG_FILE, SOCKET
from hmd.control.client import ask
from hmd.linux.emulator_memory import SharedMemory, find_device

MIB = 16
ADDRESS = "127.0.0.1:9742"
SLURM = Path("packaging/slurm")
PATIENCE_S = 300
NOBODY = 65534

CONFIG = """\
tick: 2s
rescan: 4s
targets:
- name: gather
  exe: gather
sample:
  period: 97
  cpu_quota: 100%
migrate:
  rate: 100MiB/s
"""
# The guest is many times slower than a real machine, and what this user may run lies in a
# checkout, with kernels that were compiled outside.
HERE = f"""\
[Service]
TimeoutStartSec=280
WatchdogSec=20
Environment=NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= HMD_EMULATED=1
Environment=PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={Path.cwd()}
"""


def run(*words: str) -> str:
    """Run a command to its end; returns its output."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def install(config: str) -> str:
    """Make hmd a service with this configuration, not started; returns what was shown."""
    while run("systemctl", "show", "-P", "SystemState").strip() == "starting":
        time.sleep(0.5)
    for folder in Path.cwd().parents:
        folder.chmod(folder.stat().st_mode | 0o011)  # in the guest's overlay
    CONFIG_FILE.parent.mkdir()
    CONFIG_FILE.write_text(config)
    drop_ins = Path("/etc/systemd/system/hmd.service.d")
    drop_ins.mkdir(parents=True)
    (drop_ins / "50-here.conf").write_text(HERE)
    kernels = Path("/var/cache/hmd")  # before hmd enable, which would compile them here
    shutil.copytree(os.environ["NUMBA_CACHE_DIR"], kernels, dirs_exist_ok=True)
    run("chmod", "-R", "a+rX", str(kernels))
    shown = run(sys.executable, "-m", "hmd", "enable", "--yes", "--no-start", "--accept-writable")
    run("chown", "-R", "hmd:", str(kernels))
    return shown


def show(*names: str) -> dict[str, str]:
    """Return what systemd knows of the service."""
    said = run("systemctl", "show", "hmd", *(f"-p{name}" for name in names))
    return dict(line.split("=", 1) for line in said.splitlines())


def main_pid() -> int:
    return int(show("MainPID")["MainPID"])


def status() -> dict[str, Any] | None:
    """Return the service's status, None while it does not answer."""
    try:
        found = ask(SOCKET, "status", timeout_s=90)
    except UnreachableError:
        return None
    return found if found["pid"] == main_pid() else None


def when(true_of: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first status of which something is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    found = None
    while time.monotonic() < deadline_s:
        found = status()
        if found is not None and true_of(found):
            return found
        time.sleep(1)
    raise SystemExit(f"waited without result; {found}; {journal()}")


def journal() -> list[dict[str, Any]]:
    """Return what the service has said: priority and message."""
    lines = run("journalctl", "-u", "hmd", "-o", "json", "--no-pager").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {"priority": int(row["PRIORITY"]), "message": str(row["MESSAGE"])}
        for row in rows
        if row.get("_COMM") != "systemd"
    ]


def metrics_text() -> str:
    with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def metrics() -> dict[str, float]:
    return {
        sample.name
        + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text())
        for sample in family.samples
    }


def on_node0(found: dict[str, Any]) -> int:
    return sum(process["resident_bytes"][0] for process in found["processes"])


def hot(found: dict[str, Any]) -> bool:
    """Most of the program is on the fast node, and its accesses are served there."""
    share = found["targets"][0]["fast_share"] or 0.0
    return on_node0(found) > (MIB << 20) * 3 // 4 and share > 0.75


def demanding(found: dict[str, Any]) -> bool:
    """Without fast memory, the program is said to take much longer."""
    demand = found["targets"][0]["demand"]
    return bool(demand and demand["runtime"] and demand["runtime"][0] > 1.2)


def restarted(found: dict[str, Any]) -> bool:
    """The program is known again, and where its pages are."""
    return on_node0(found) > (MIB << 20) * 3 // 4


def main() -> None:
    gather, rules = sys.argv[1], Path(sys.argv[2])
    device = find_device()
    assert device is not None
    machine = SharedMemory.open(device)
    found: dict[str, Any] = {"shown": install(CONFIG)}
    # Where another user may run it.
    own = shutil.copy(gather, "/usr/local/bin/gather")
    program = subprocess.Popen(
        ["numactl", "--physcpubind=1", "--preferred=1", own, str(MIB)],
        stdout=subprocess.PIPE,
        text=True,
        user=NOBODY,
    )
    assert program.stdout is not None
    if not program.stdout.readline():
        raise SystemExit(f"{own} did not start")
    os.sched_setaffinity(0, {0})

    run("systemctl", "start", "hmd")
    found["first"] = when(lambda s: s["processes"])
    found["service"] = show("User", "StatusText", "ActiveState", "NRestarts")
    owner = Path(f"/proc/{main_pid()}").stat()
    found["owner"] = owner.st_uid
    # Not on the share: Prometheus maps its files.
    server = Prometheus(
        Path(tempfile.mkdtemp()),
        {"hmd": ADDRESS},
        rules,
        interval_s=scraped.INTERVAL_S,
        patience_s=scraped.PATIENCE_S,
    )
    with server as prometheus:
        # Memory has two speeds, and misses are sampled, only while modelled time runs; the rest
        # is many times faster without it.
        began_s = time.time()
        machine.running = True
        found["promoted"] = when(hot)
        # Its waits are counted from the first count of pages to the next.
        found["demanding"] = when(demanding)
        for expr in scraped.DONE:
            scraped.wait_for(prometheus, expr)
        machine.running = False
        # Pages are counted by heat every ten seconds (hmd.daemon.service, CENSUS_S).
        when(lambda s: s["uptime_s"] > found["promoted"]["uptime_s"] + 15)
        found["metrics"] = metrics()
        found["scraped"] = scraped.checked(prometheus, began_s) | {"metrics": metrics_text()}

    CONFIG_FILE.write_text(CONFIG + "tick: soon\n")
    reload = subprocess.run(("systemctl", "reload", "hmd"), check=False, capture_output=True)
    found["broken_reload_code"] = reload.returncode
    found["broken"] = when(lambda s: not s["reload"]["successful"])
    found["broken_metrics"] = metrics()
    found["after_broken"] = when(lambda s: s["ticks"] > found["broken"]["ticks"] + 1)

    CONFIG_FILE.write_text(CONFIG.replace("rate: 100MiB/s", "rate: 50MiB/s"))
    run("systemctl", "reload", "hmd")
    ticked = found["after_broken"]["ticks"]
    found["mended"] = when(lambda s: s["reload"]["successful"] and s["ticks"] > ticked)

    # What Slurm runs before and after a job.
    job = {**os.environ, "SLURM_JOB_ID": "4711"}
    subprocess.run([SLURM / "prolog.sh"], env=job, check=True)
    found["job"] = when(lambda s: len(s["targets"]) > 1)
    subprocess.run([SLURM / "epilog.sh"], env=job, check=True)
    found["job_ended"] = when(lambda s: len(s["targets"]) == 1)

    # One that hangs is found by the watchdog, killed, and started again.
    os.kill(main_pid(), signal.SIGSTOP)
    while show("NRestarts")["NRestarts"] == "0":
        time.sleep(1)
    found["restarted"] = when(restarted)
    found["after_hang"] = show("NRestarts", "ActiveState")

    program.kill()
    program.wait()
    found["exited"] = when(lambda s: not s["processes"])
    run("systemctl", "stop", "hmd")
    found["stopped"] = show("ActiveState", "Result", "ExecMainStatus")
    found["socket_left"] = SOCKET.exists()
    found["journal"] = journal()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
