# SPDX-License-Identifier: MIT
"""A Debian in a folder, made from this machine's own package sources, and booted in namespaces.

Its systemd runs on this machine's kernel, CPUs, memory and network. Needs root and mmdebstrap.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATH: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_FIRST = Path(__file__).with_name("boot_debian.sh")


def run(words: Sequence[str], timeout_s: float, code: int | None, said: str | None = None) -> str:
    """Run a command with ``said`` as its input; return what it printed, errors too.

    Raises AssertionError with that where its exit status is not ``code`` (None: any).
    """
    done = subprocess.run(
        words,
        input=said,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        env=PATH,
        check=False,
    )
    if code not in (None, done.returncode):
        raise AssertionError(done.stdout[-4000:])
    return done.stdout


class Booted:
    """A Debian whose systemd runs, in namespaces of its own on this machine's kernel."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder = folder
        spaces = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--root", "--wd")
        self._enter = ["nsenter", "--target", str(first), *spaces]

    def run(self, *words: str, code: int | None = 0, timeout_s: float = 400) -> str:
        """Run a command in it as root; return what it printed, errors too."""
        return run([*self._enter, *words], timeout_s, code)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command in it as root."""
        return subprocess.Popen([*self._enter, *words], env=PATH, stdout=subprocess.DEVNULL)

    def show(self, *names: str) -> dict[str, str]:
        """Return what systemd knows of the service."""
        said = self.run("systemctl", "show", "hmd", *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in said.splitlines())


@contextmanager
def booted(folder: Path) -> Iterator[Booted]:
    """Boot it with its own systemd as first process; at the end all its processes are killed."""
    spaces = ("--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc")
    with subprocess.Popen(
        ["unshare", *spaces, "--kill-child", "sh", str(_FIRST), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as machine:
        try:
            yield Booted(folder, _first_process(machine))
        finally:
            machine.send_signal(signal.SIGKILL)


def _first_process(machine: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children")
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and machine.poll() is None:
        for child in children.read_text().split():
            answers = Path(f"/proc/{child}/root/run/systemd/private").exists()
            if answers and Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                return int(child)
        time.sleep(0.1)
    machine.kill()
    raise AssertionError(f"systemd did not start: {machine.communicate()[0].decode()}")


def sources() -> str:
    """Return this machine's own sources of Debian 12, for a new one."""
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)"
    targets = run(["apt-get", "indextargets", "--format", columns], 60, 0)
    lines = {
        f"deb {uri} {release} main"
        for uri, release, component, made_by in map(str.split, targets.splitlines())
        if (component, made_by) == ("main", "Packages")
        and release in ("bookworm", "bookworm-updates", "bookworm-security")
    }
    return "\n".join(sorted(lines))


def make_debian(output: Path, *options: str) -> None:
    """Make a Debian 12 with mmdebstrap: a folder, or an archive where the name ends in .tar."""
    command = ["mmdebstrap", "--dpkgopt=force-unsafe-io", *options, "bookworm", str(output), "-"]
    run(command, 900, 0, sources())
