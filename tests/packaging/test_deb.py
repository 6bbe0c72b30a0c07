"""The Debian package: built, and installed, used and purged in a clean Debian.

The clean Debian is made of this machine's own package sources, once for each set of dependencies
(build/deb/clean-*.tar): nothing but what the package asks for is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd import __version__

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="a chroot takes root"),
]

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
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", ENTER, str(self.folder), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

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


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
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


@pytest.fixture
def debian(clean: Path, package: Path, tmp_path: Path) -> Iterator[Debian]:
    """A clean Debian with the package in /tmp; removed when the test ends."""
    folder = tmp_path / "debian"
    folder.mkdir()
    subprocess.run(["tar", "--numeric-owner", "-xf", str(clean), "-C", str(folder)], check=True)
    shutil.copy(package, folder / "tmp/hmd.deb")
    yield Debian(folder)
    shutil.rmtree(folder)


def test_a_clean_debian_runs_the_daemon_and_is_clean_again_after_purging(debian: Debian) -> None:
    before, users = debian.files(), debian.run("getent", "passwd")
    debian.run("dpkg", "--force-unsafe-io", "--install", "/tmp/hmd.deb")
    what_an_administrator_finds(debian)
    the_command_works(debian)
    assert "ready: 0 processes" in debian.run("hmd", "run", "--once")
    edited = debian.folder / "etc/hmd/hmd.yaml"
    edited.write_text(edited.read_text() + "# mine\n")

    debian.run("dpkg", "--remove", "hmd")
    left = debian.files().keys() - before.keys()
    assert {path for path in left if "hmd" in path and not path.startswith("etc/hmd")} == set()
    assert edited.read_text().endswith("# mine\n")

    debian.run("dpkg", "--purge", "hmd")
    assert debian.files() == before
    assert debian.run("getent", "passwd") == users


def what_an_administrator_finds(debian: Debian) -> None:
    assert debian.run("getent", "passwd", "hmd").endswith(":/var/lib/hmd:/usr/sbin/nologin\n")
    assert not list(debian.folder.glob("etc/systemd/system/*/hmd.service"))
    debian.run("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/hmd.service")
    share = debian.folder / "usr/share"
    for path in (
        *(
            "man/man1/hmd.1.gz",
            "man/man1/hmd-run.1.gz",
            "man/man5/hmd.yaml.5.gz",
            "man/man8/hmd.8.gz",
        ),
        *("bash-completion/completions/hmd", "fish/vendor_completions.d/hmd.fish"),
        *("zsh/vendor-completions/_hmd", "doc/hmd/copyright", "hmd/systemd/samplers/damon.conf"),
    ):
        assert (share / path).is_file(), path
    assert debian.run("dpkg-query", "-W", "-f", "${Conffiles}", "hmd").split()[0] == (
        "/etc/hmd/hmd.yaml"
    )
    assert (debian.folder / "etc/hmd/hmd.d").is_dir()


def the_command_works(debian: Debian) -> None:
    assert "hmd run" in debian.run("hmd", "--help")
    assert debian.run("hmd", "--version").split() == ["hmd", __version__]
    assert "histogram" in debian.run("hmd", "policy", "list")
    example = "/etc/hmd/hmd.yaml"
    assert debian.run("hmd", "config", "check", example) == f"{example}: ok\n"
    plan = json.loads(debian.run("hmd", "enable", "--dry-run", "--json", "--sampler", "damon"))
    assert [(file["path"], file["kind"]) for file in plan["files"]] == [
        ("/etc/hmd/hmd.yaml", "keep"),
        ("/etc/systemd/system/hmd.service.d/10-sampler.conf", "create"),
    ]
    # What a user has in PYTHONPATH is not hmd's.
    debian.run("sh", "-c", "mkdir /tmp/bad && echo raise SystemExit >/tmp/bad/numpy.py")
    assert "node" in debian.run("env", "PYTHONPATH=/tmp/bad", "hmd", "topology")


def test_no_file_of_the_package_names_the_folder_that_it_was_made_in(
    package: Path, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tmp_path / "out")], check=True)
    found = subprocess.run(
        ["grep", "-rlF", "-e", str(ROOT), "-e", str(package.parent), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
