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
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.debian import make_debian, run, sources
from hmd import __version__

ROOT = Path(__file__).parents[3]

ENTER = 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"'
"""What a shell does in namespaces of its own; all mounts and processes go with them."""

KEPT = re.compile(
    r"(var/(lib/dpkg|lib/systemd|log|cache)|run/systemd|etc/(passwd|group|g?shadow)|tmp|proc|sys)\b"
)
"""Where a package manager and systemd keep records of their own, also of what has gone."""


class Debian:
    """A Debian in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command in it as root; return what it printed, errors too."""
        inside = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", ENTER, str(self.folder)]
        return run([*inside, *words], 400, code)

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


KERNELS = ROOT / "build/deb/kernels"
"""Machine code of the installed package's kernels: to compile them takes a minute."""


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
        fresh = archive.with_suffix(".new.tar")
        make_debian(fresh, "--variant=minbase", f"--include={names}")
        fresh.replace(archive)
    return archive


def lend_kernels(folder: Path) -> None:
    """Give a system the kernels that an earlier one compiled, as far as they still are valid."""
    if KERNELS.exists():
        shutil.copytree(KERNELS, folder / "usr/lib/hmd", dirs_exist_ok=True)


def keep_kernels(folder: Path) -> None:
    """Keep what the package has compiled as it was installed, for the next system."""
    installed = folder / "usr/lib/hmd"
    found = [path for path in installed.rglob("*.nb[ic]") if path.is_file()]
    assert found
    for path in found:
        kept = KERNELS / path.relative_to(installed)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)


@pytest.fixture
def debian(clean: Path, package: Path, tmp_path: Path) -> Iterator[Debian]:
    """A clean Debian with the package in /tmp; removed when the test ends."""
    folder = tmp_path / "debian"
    folder.mkdir()
    subprocess.run(["tar", "--numeric-owner", "-xf", str(clean), "-C", str(folder)], check=True)
    shutil.copy(package, folder / "tmp/hmd.deb")
    yield Debian(folder)
    shutil.rmtree(folder)
