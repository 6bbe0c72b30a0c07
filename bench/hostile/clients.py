# SPDX-License-Identifier: MIT
"""The service while hostile clients flood it: prints figures, writes build/hostile-clients.json.

A daemon on this host as its service runs it (another user, RLIMIT_NPROC 64, RLIMIT_NOFILE 1024, the
unit's niceness).
Another user holds 2,000 idle HTTP connections and 40 idle clients of the status socket, sends 1,000
requests per second that are refused, and every other 10 seconds runs 40 busy processes per CPU.
Meanwhile root pauses and resumes hmd twice per second,
and a third user scrapes the metrics four times per second. Needs root.

    python -m bench.hostile.clients [--seconds 60] [--publish]

``pause_worst_s`` is the longest time from request to answer, without the start of the command's
interpreter. ``scrapes_answered`` is a share. ``log_lines`` are the lines that the daemon logged
meanwhile, without those about root's requests. ``daemon_cpu`` is CPU time over elapsed time. With
``--publish`` the figures also go to docs/results/hostile.json.

Clients that try to keep others out: idle connections, requests that are refused, busy loops.

Each runs in a process of its own as a user who may connect to the status socket, that is, a member
of its group, until it is killed. What the daemon closes is opened again.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.documents.markdown import measured_with
from bench.hostile.confined_daemon import DAEMON_UID, ConfinedDaemon, confined_daemon
from hmd.base.errors import HmdError, NotPermittedError
from hmd.control.client import send_admin_request

ATTACKER_UID: Final = 64711
HTTP_CONNECTIONS: Final = 2000
SOCKET_CONNECTIONS: Final = 40
REFUSED_PER_S: Final = 1000
BUSY_PER_CPU: Final = 40
BUSY_S: Final = 10.0
REOPEN_S: Final = 1.0

Connect = Callable[[], socket.socket]

METRICS_PORT: Final = 19742
PAUSE_EVERY_S: Final = 0.5
SCRAPE_EVERY_S: Final = 0.25
SCRAPE_TIMEOUT_S: Final = 10.0
TARGET: Final = "import sys; kept = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def hold_idle(connect: Connect, count: int) -> None:
    """Keep ``count`` connections open that send half a request at most."""
    held: list[socket.socket] = []
    while True:
        begun_s = time.monotonic()
        held = [s for s in held if _open(s)]
        while len(held) < count:
            try:
                held.append(connect())
            except OSError:
                break
        time.sleep(max(0.0, REOPEN_S - (time.monotonic() - begun_s)))


def request_refused(path: Path, rate_per_s: int) -> None:
    """Send admin requests that this user may not make, ``rate_per_s`` of them."""
    due_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError), _unix(path) as s:
            s.sendall(b'{"command": "pause"}\n')
            s.recv(4096)
        due_s = max(due_s + 1 / rate_per_s, time.monotonic() - 1)
        time.sleep(max(0.0, due_s - time.monotonic()))


def keep_busy() -> None:
    """Use all CPU time that there is, every other 10 seconds: meanwhile requests are few."""
    while True:
        turn, left_s = divmod(time.monotonic(), BUSY_S)
        if turn % 2:
            time.sleep(BUSY_S - left_s)


@contextmanager
def attackers(path: Path, metrics_port: int, group: int) -> Iterator[None]:
    """Run all of them at once."""
    half_a_request = b"GET /metrics HT"

    def http() -> socket.socket:
        s = socket.create_connection(("127.0.0.1", metrics_port), timeout=5)
        s.sendall(half_a_request)
        s.setblocking(False)
        return s

    def idle_client() -> socket.socket:
        s = _unix(path)
        s.sendall(b'{"comm')
        s.setblocking(False)
        return s

    works: list[Callable[[], None]] = [
        lambda: hold_idle(http, HTTP_CONNECTIONS),
        lambda: hold_idle(idle_client, SOCKET_CONNECTIONS),
        lambda: request_refused(path, REFUSED_PER_S),
        *[keep_busy] * (BUSY_PER_CPU * len(os.sched_getaffinity(0))),
    ]
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=_as_attacker, args=(work, group)) for work in works]
    try:
        for process in running:
            process.start()
        yield
    finally:
        for process in running:
            if process.is_alive():
                process.kill()
                process.join()


def _as_attacker(work: Callable[[], None], group: int) -> None:
    most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1], HTTP_CONNECTIONS + 64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setgid(group)
    os.setuid(ATTACKER_UID)
    work()


def _unix(path: Path) -> socket.socket:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(str(path))
    except BaseException:
        s.close()
        raise
    return s


def _open(s: socket.socket) -> bool:
    """Return whether the other end has not closed a connection; closes it otherwise."""
    try:
        if s.recv(4096):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    s.close()
    return False


ROOT: Final = Path(__file__).parents[2]
OUTPUT: Final = ROOT / "build/hostile-clients.json"
PUBLISHED: Final = ROOT / "docs/results/hostile.json"


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What root and a scraper got, and what the daemon made of it."""

    seconds: float
    pauses: int
    pause_worst_s: float
    pause_median_s: float
    scrapes: int
    scrapes_answered: float
    ticks: int
    stages_failed: int
    log_lines: int
    refused: int
    daemon_cpu: float


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description="The service while hostile clients flood it.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise NotPermittedError("bench.hostile.clients acts as several users: run it as root")
    figures = asdict(measure(args.seconds))
    for name, value in figures.items():
        print(f"{name:20}{value:12.4g}")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=1) + "\n")
    if args.publish:
        known = json.loads(PUBLISHED.read_text()) if PUBLISHED.is_file() else {}
        known["clients"] = {**figures, **measured_with()}
        PUBLISHED.write_text(json.dumps(known, indent=1) + "\n")
    return 0


def measure(seconds: float) -> ClientFigures:
    """Return the figures of ``seconds`` of attack."""
    with subprocess.Popen(
        [sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as target:
        assert target.stdin is not None and target.stdout is not None
        target.stdout.readline()
        targets = [{"name": "bench", "pid": target.pid}]
        with confined_daemon(targets, METRICS_PORT) as daemon:
            figures = _under_attack(daemon, seconds)
        target.stdin.close()
    return figures


def _under_attack(daemon: ConfinedDaemon, seconds: float) -> ClientFigures:
    before, lines = daemon.status(), _lines(daemon.log)
    pauses: list[float] = []
    scrapes: list[bool] = []
    with attackers(daemon.socket, METRICS_PORT, DAEMON_UID):
        begun_s = time.monotonic()
        end_s = begun_s + seconds
        works: list[tuple[float, Callable[[], None]]] = [
            (PAUSE_EVERY_S, lambda: pauses.append(_pause(daemon.socket))),
            (SCRAPE_EVERY_S, lambda: scrapes.append(_scraped())),
        ]
        threads = [threading.Thread(target=_repeat, args=(*work, end_s)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed_s = time.monotonic() - begun_s
        after, more_lines = daemon.status(), _lines(daemon.log)
    failed = sum(after["stage_failures"].values()) - sum(before["stage_failures"].values())
    return ClientFigures(
        seconds=elapsed_s,
        pauses=len(pauses),
        pause_worst_s=max(pauses),
        pause_median_s=sorted(pauses)[len(pauses) // 2],
        scrapes=len(scrapes),
        scrapes_answered=sum(scrapes) / len(scrapes),
        ticks=after["ticks"] - before["ticks"],
        stages_failed=failed,
        log_lines=more_lines - lines,
        refused=_refused(),
        daemon_cpu=(after["cpu_s"] - before["cpu_s"]) / elapsed_s,
    )


def _repeat(every_s: float, work: Callable[[], None], end_s: float) -> None:
    due_s = time.monotonic()
    while due_s < end_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        work()
        due_s = max(due_s + every_s, time.monotonic())


def _pause(path: Path) -> float:
    """Pause hmd, resume it; return the longer time, infinity where it is not done."""
    worst_s = 0.0
    for command in ("pause", "resume"):
        begun_s = time.monotonic()
        try:
            send_admin_request(path, command)
        except HmdError:
            return float("inf")
        worst_s = max(worst_s, time.monotonic() - begun_s)
    return worst_s


def _get() -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", METRICS_PORT, timeout=SCRAPE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else b""
    finally:
        connection.close()


def _scraped() -> bool:
    try:
        return b"hmd_samples_total" in _get()
    except (OSError, http.client.HTTPException):
        return False


def _refused() -> int:
    """Return how many requests the daemon has refused, by its own count."""
    for line in _get().decode().splitlines():
        if line.startswith('hmd_admin_requests_total{command="pause",outcome="refused"'):
            return int(float(line.rpartition(" ")[2]))
    return 0


def _lines(log: Path) -> int:
    return sum(b" by uid 0, pid " not in line for line in log.read_bytes().splitlines())


if __name__ == "__main__":
    sys.exit(main())
