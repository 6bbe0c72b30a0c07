# SPDX-License-Identifier: MIT
"""Run a document's commands, in mounts and a network of their own: ``session.py FOLDER DAEMON``.

Started by unshare(1). Standard input has the steps as JSON, ``[command, daemon]`` each, where
``daemon`` says that one is to run meanwhile, with the configuration DAEMON; standard output gets
``[exit code, output]`` of each. /run is empty, so that sockets are where documents say.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from hmd.base.errors import UnreachableError
from hmd.base.paths import SOCKET
from hmd.control.client import ask

PATIENCE_S = 120
ENDLESS = re.compile(r"hmd (run|top|dashboard)\b(?!.* (--ticks|--once|--help|-n)\b)")
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def own_world() -> None:
    """Give this namespace a /run and a loopback of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def is_endless(command: str) -> bool:
    return bool(ENDLESS.match(command))


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run a command to its end; one that has none is interrupted once it has said something."""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        if is_endless(command):
            said = process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, said + process.communicate()[0]
        return process.returncode, said + rest


def start_daemon(configuration: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a daemon; returns after its first tick, before which it is not healthy."""
    process = subprocess.Popen(
        ["hmd", "run", "--config", configuration], cwd=folder, stderr=subprocess.DEVNULL
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            if ask(SOCKET, "status")["ticks"]:
                return process
        except UnreachableError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"the daemon did not start: {process.returncode}")


def main(folder: Path, configuration: str) -> None:
    """Run the steps."""
    own_world()
    daemon = None
    results = []
    for command, wanted in json.load(sys.stdin):
        if wanted and daemon is None:
            daemon = start_daemon(configuration, folder)
        elif not wanted and daemon is not None:
            daemon.terminate()
            daemon.wait(PATIENCE_S)
            daemon = None
        results.append(run(command, folder))
    if daemon is not None:
        daemon.terminate()
        daemon.wait(PATIENCE_S)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
