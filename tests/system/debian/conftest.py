# SPDX-License-Identifier: MIT
"""Fixtures: the Debian package and a clean Debian for it, not running or booted.

The clean Debian is made of this machine's own package sources, once for each set of dependencies
(build/deb/clean-*.tar): nothing but what the package asks for is in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hmd import __version__

ROOT = Path(__file__).parents[3]
FIRST = Path(__file__).with_name("boot.sh")
PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

ENTER = 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"'
"""What a shell does in namespaces of its own; all mounts and processes go with them."""

KEPT = re.compile(
    r"(var/(lib/dpkg|lib/systemd|log|cache)|run/systemd|etc/(passwd|group|g?shadow)|tmp|proc|sys)\b"
)
"""Where a package manager and systemd keep records of their own, also of what has gone."""


def _run(words: list[str], timeout_s: float, code: int | None) -> str:
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        env=PATH,
        check=False,
    )
    assert code is None or done.returncode == code, done.stdout
    return done.stdout


class Debian:
    """A Debian in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command in it as root; return what it printed, errors too."""
        inside = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", ENTER, str(self.folder)]
        return _run([*inside, *words], 400, code)

    def files(self) -> dict[str, tuple[int, int]]:
        """Return mode and size of all files, by path, but of records."""
        found = {}
        for folder, names, files in os.walk(self.folder):
            inside = Path(folder).relative_to(self.folder)
            names[:] = [name for name in names if not KEPT.match(f"{inside / name}/")]
            for name in (*names, *files):
                path = inside / name
                if not KEPT.match(str(path)):
                    status = (self.folder / path).lstat()
                    size = 0 if name in names else status.st_size
                    found[str(path)] = (status.st_mode, size)
        return found


class Booted:
    """A Debian whose systemd runs, in namespaces of its own on this machine's kernel."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder = folder
        spaces = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--root", "--wd")
        self._enter = ["nsenter", "--target", str(first), *spaces]

    def run(self, *words: str, code: int | None = 0) -> str:
        """Run a command in it as root; return what it printed, errors too."""
        return _run([*self._enter, *words], 200, code)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command in it as root."""
        return subprocess.Popen([*self._enter, *words], env=PATH, stdout=subprocess.DEVNULL)

    def show(self, *names: str) -> dict[str, str]:
        """Return what systemd knows of the service."""
        said = self.run("systemctl", "show", "hmd", *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in said.splitlines())


KERNELS = ROOT / "build/deb/kernels"
"""Machine code of the installed package's kernels: to compile them takes a minute."""


@contextmanager
def booted(debian: Debian) -> Iterator[Booted]:
    """Boot it with its own systemd as first process; at the end all its processes are killed."""
    spaces = ("--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc")
    with subprocess.Popen(
        ["unshare", *spaces, "--kill-child", "sh", str(FIRST), str(debian.folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as machine:
        try:
            yield Booted(debian.folder, _first_process(machine))
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


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    built = subprocess.run(
        [str(ROOT / "packaging/build_deb.sh"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return folder / f"hmd_{__version__}_amd64.deb"


def field(package: Path, name: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "--field", str(package), name], capture_output=True, text=True, check=True
    ).stdout.strip()


def sources() -> str:
    """Return this machine's own sources of Debian 12, for a new one."""
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)"
    targets = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            columns,
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = {
        f"deb {uri} {release} main"
        for uri, release, component, made_by in map(str.split, targets.splitlines())
        if (component, made_by) == ("main", "Packages")
        and release in ("bookworm", "bookworm-updates", "bookworm-security")
    }
    return "\n".join(sorted(lines))


@pytest.fixture(scope="session")
def clean(package: Path) -> Path:
    """An archive of a minimal Debian with the package's dependencies, the first of each choice."""
    wanted = re.sub(r" *\([^)]*\)| *\|[^,]*", "", field(package, "Depends"))
    names = ",".join(sorted({name.strip() for name in wanted.split(",")}))
    stamp = hashlib.sha256(f"{names}\n{sources()}".encode()).hexdigest()[:12]
    archive = ROOT / f"build/deb/clean-{stamp}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        for old in archive.parent.glob("clean-*.tar"):
            old.unlink()
        fresh = archive.with_suffix(".new")
        command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--include={names}"]
        made = subprocess.run(
            [*command, "--dpkgopt=force-unsafe-io", "bookworm", str(fresh), "-"],
            input=sources(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert made.returncode == 0, made.stdout[-2000:]
        fresh.replace(archive)
    return archive


def lend_kernels(folder: Path) -> None:
    """Give a system the kernels that an earlier one compiled, as far as they still are valid."""
    if KERNELS.exists():
        shutil.copytree(KERNELS, folder / "var/cache/hmd", dirs_exist_ok=True)


def keep_kernels(folder: Path) -> None:
    """Keep what the package has compiled as it was installed, for any user of the next system."""
    shutil.copytree(folder / "var/cache/hmd", KERNELS, dirs_exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(KERNELS)], check=True)


@pytest.fixture
def debian(clean: Path, package: Path, tmp_path: Path) -> Iterator[Debian]:
    """A clean Debian with the package in /tmp; removed when the test ends."""
    folder = tmp_path / "debian"
    folder.mkdir()
    subprocess.run(["tar", "--numeric-owner", "-xf", str(clean), "-C", str(folder)], check=True)
    shutil.copy(package, folder / "tmp/hmd.deb")
    lend_kernels(folder)
    yield Debian(folder)
    shutil.rmtree(folder)
