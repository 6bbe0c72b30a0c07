"""Run the daemon in the guest on a program that lies on the slow node, and scrape it all the while.

    scraped.py GATHER RULES

One JSON line at the end: what Prometheus answers to every query of the dashboard, the health of
the alert rules, and the last metrics as text. What is right is in tests/vm/test_prometheus.py.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from hmd.machine.emulated import SharedMemory, find_device
from hmd.observe.dashboard import panels
from hmd.observe.prometheus import Prometheus

MIB = 16
ADDRESS = "127.0.0.1:9742"
PATIENCE_S = 400
INTERVAL_S = 15
RATE_INTERVAL = "20m"
"""Longer than all of this takes, so that rates see every scrape."""

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
DONE = (
    'sum(hmd_moved_bytes_total{from_tier="1", to_tier="0"}) > 12 * 2^20',
    'hmd_target_fast_access_ratio{target="gather"} > 0.75',
    "hmd_realised_saving_seconds_total > 0",
)
"""What Prometheus knows when the program's pages have been moved and used since."""


def wait_for(prometheus: Prometheus, expr: str, log: Path) -> None:
    """Wait until a query has an answer."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not prometheus.ask(expr):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited in vain for {expr}; log: {log.read_text()}")
        time.sleep(2)


def answers(prometheus: Prometheus) -> dict[str, list[float | None]]:
    """Return the last values of every query of the dashboard, by panel; None for no number."""
    found = {}
    for panel in panels(rate_interval=RATE_INTERVAL):
        for query in panel.queries:
            values = [series.last for series in prometheus.ask(query.expr)]
            name = f"{panel.row}: {panel.title}: {query.legend}"
            found[name] = [value if math.isfinite(value) else None for value in values]
    return found


def health(prometheus: Prometheus) -> dict[str, str]:
    """Return the health of each alert rule, once all have been evaluated."""
    while True:
        groups = prometheus.get("rules")["groups"]
        found = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        if "unknown" not in found.values():
            return found
        time.sleep(2)


def main() -> None:
    gather, rules = sys.argv[1], Path(sys.argv[2])
    device = find_device()
    assert device is not None
    machine = SharedMemory.open(device)
    # Not on the share: Prometheus maps its files.
    folder = Path(tempfile.mkdtemp())
    program = subprocess.Popen(
        ["numactl", "--physcpubind=1", "--membind=1", gather, str(MIB)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.readline()
    os.sched_setaffinity(0, {0})
    config, log = folder / "hmd.yaml", folder / "log"
    config.write_text(
        CONFIG + f"observe: {{metrics: '{ADDRESS}', socket: {folder / 'run/hmd.sock'}}}\n"
    )
    with log.open("wb") as opened:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "hmd", "run", "--config", str(config)], stderr=opened
        )
    targets = {"hmd": ADDRESS}
    with Prometheus(
        folder, targets, rules, interval_s=INTERVAL_S, patience_s=PATIENCE_S
    ) as prometheus:
        wait_for(prometheus, 'hmd_target_processes{target="gather"} == 1', log)
        # Memory has two speeds, and misses are sampled, only while modelled time runs.
        begun_s = time.time()
        machine.running = True
        for expr in DONE:
            wait_for(prometheus, expr, log)
        machine.running = False
        with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = {
            "answers": answers(prometheus),
            "health": health(prometheus),
            "metrics": text,
            "stages": {
                f"{series.labels['stage']} {way}": series.last
                for way in ("in", "out")
                for series in prometheus.ask(f"hmd_stage_{way}_total")
            },
            "up": [
                value
                for series in prometheus.ask_range("up", begun_s, time.time(), INTERVAL_S)
                for _, value in series.points
            ],
        }
    daemon.terminate()
    found["code"] = daemon.wait(60)
    program.kill()
    program.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
