# SPDX-License-Identifier: MIT
"""Lose and find the server of nbd while a program's memory is out; print what was seen as JSON.

    far_memory.py REMEMBER MODULE...

The server is in a network namespace of its own, behind a link that delays and loses packets. It is
killed and started again; comes back with a blank export; and is killed again after the client of
hmd was killed and started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hmd.daemon.nbd_client import PORT, export_uuid
from hmd.linux.swap import NBD_FAILURE

MIB = 24
SERVER = "10.77.0.1"
EXPORT = Path("/dev/shm/far")
BYTES = 64 << 20
CONFIG = Path("/run/nbd.conf")
DEVICE = NBD_FAILURE.with_name("nbd")
AREA = export_uuid(SERVER, PORT, "far", "guest")
GROUP = Path("/sys/fs/cgroup/remember")
NETWORK = (
    "ip netns add far",
    "ip link add near type veth peer name there netns far",
    "ip address add 10.77.0.2/24 dev near",
    "ip link set near up",
    f"ip -n far address add {SERVER}/24 dev there",
    "ip -n far link set there up",
    "tc qdisc add dev near root netem delay 2ms 1ms loss 0.5%",
    "ip netns exec far tc qdisc add dev there root netem delay 2ms 1ms loss 0.5%",
)


def run(line: str) -> None:
    subprocess.run(line.split(), check=True, stdout=subprocess.DEVNULL)


def make_network() -> None:
    """Make the namespace of the server, and its configuration."""
    for line in NETWORK:
        run(line)
    CONFIG.write_text(f"[generic]\nlistenaddr={SERVER}\n[far]\nexportname={EXPORT}\n")


def make_export() -> None:
    EXPORT.touch()
    os.truncate(EXPORT, BYTES)


def start_server() -> None:
    # Its children keep standard output.
    words = ["ip", "netns", "exec", "far", "nbd-server", "-C", str(CONFIG)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_server() -> None:
    """Kill the server and its children, of which it has one per connection."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (folder / "comm").read_text().strip() == "nbd-server":
                os.kill(int(folder.name), signal.SIGKILL)


def start_client() -> subprocess.Popen[bytes]:
    module = [sys.executable, "-m", "hmd.daemon.nbd_client"]
    return subprocess.Popen([*module, SERVER, str(PORT), "far", AREA, str(DEVICE)])


def wait_for_failure(text: str) -> str:
    """Return what the client says once it says this."""
    deadline_s = time.monotonic() + 60
    while not (NBD_FAILURE.exists() and text in NBD_FAILURE.read_text()):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the client does not say {text!r}")
        time.sleep(0.2)
    return NBD_FAILURE.read_text()


class Remember:
    """A program that knows what its memory contains."""

    def __init__(self, program: str) -> None:
        GROUP.mkdir()
        self._process = subprocess.Popen(
            ["sh", "-c", f"echo 0 >{GROUP}/cgroup.procs; exec {program} {MIB}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.read()

    def ask(self) -> None:
        """Let it look at all of its memory."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def read(self) -> str:
        """Return its next line, empty where it was killed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def send_out(self) -> int:
        """Send its memory out; return the bytes that are in swap and no longer in memory."""
        for _ in range(3):
            # More than there is: EAGAIN. What is written is freed by the next call.
            with contextlib.suppress(OSError):
                (GROUP / "memory.reclaim").write_text(str(2 * MIB << 20))
            time.sleep(1)
        rows = (line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        swapped = int((GROUP / "memory.swap.current").read_text())
        return swapped - next(int(value) for name, value in rows if name == "swapcached")


def lose_server(remember: Remember) -> dict[str, Any]:
    """Kill the server while the program's memory is out and needed; start it again."""
    found: dict[str, Any] = {"out_bytes": remember.send_out()}
    kill_server()
    remember.ask()
    found["failure"] = wait_for_failure("refused")
    start_server()
    found["wrong_words"] = remember.read()
    found["after"] = NBD_FAILURE.read_text()
    return found


def lose_contents(remember: Remember) -> dict[str, Any]:
    """As ``lose_server``, but the server first comes back with another file."""
    found: dict[str, Any] = {"out_bytes": remember.send_out()}
    kill_server()
    contents = EXPORT.rename(EXPORT.with_name("contents"))
    make_export()
    start_server()
    remember.ask()
    found["failure"] = wait_for_failure("has lost")
    kill_server()
    contents.replace(EXPORT)
    start_server()
    found["wrong_words"] = remember.read()
    found["after"] = NBD_FAILURE.read_text()
    return found


def main() -> None:
    """Make network, server, client and swap; lose the server in three ways; end it all."""
    program, *modules = sys.argv[1:]
    for module in modules:
        run(f"busybox insmod {module}")
    make_network()
    make_export()
    start_server()
    time.sleep(1)
    DEVICE.parent.mkdir()
    client = start_client()
    while not DEVICE.exists():
        if client.poll() is not None:
            raise SystemExit("the client has ended")
        time.sleep(0.1)
    device = DEVICE.read_text().strip()
    run(f"mkswap -U {AREA} {device}")
    run(f"swapon -p 50 {device}")
    (GROUP.parent / "cgroup.subtree_control").write_text("+memory")
    remember = Remember(program)
    found = {"server": lose_server(remember), "contents": lose_contents(remember)}
    client.kill()
    client.wait()
    client = start_client()
    time.sleep(3)
    found["client"] = lose_server(remember)
    run(f"swapoff {device}")
    client.terminate()
    found["end"] = {"code": client.wait(60), "device_left": DEVICE.exists()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
