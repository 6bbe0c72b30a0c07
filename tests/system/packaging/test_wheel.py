# SPDX-License-Identifier: MIT
"""The wheel and the source distribution: contents, builds from each other, and installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from hmd import __version__

ROOT = Path(__file__).parents[3]
BUILT = {"hmd/_native.abi3.so", "hmd/emulate/_timing.abi3.so", "hmd/REVISION"}


@dataclass(frozen=True, slots=True)
class Built:
    """Results of `make wheel`: the source distribution, and the wheel built from it."""

    sdist: Path
    wheel: Path

    def packaged(self) -> set[str]:
        """Return the files of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}

    def sources(self) -> set[str]:
        """Return the files of the source distribution, relative to its folder."""
        with tarfile.open(self.sdist) as archive:
            return {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}


def build(source: Path, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, *options, str(source)], check=True, capture_output=True, timeout=250)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel)


def tracked(*paths: str) -> set[str]:
    """Return the files tracked by git; skips without a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("git knows which files belong to hmd; this is no checkout")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *paths],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def test_wheel_contains_exactly_the_package_files(built: Built) -> None:
    inside = {name for name in built.packaged() if name.startswith("hmd/")}
    assert inside == tracked("hmd") | BUILT
    assert not [name for name in built.packaged() if name.startswith(("bench/", "tests/"))]


def test_wheel_contains_units_configuration_pages_and_completions(built: Built) -> None:
    data = f"hmd_tiering-{__version__}.data/data/"
    shared = {n.removeprefix(data) for n in built.packaged() if n.startswith(data)}
    files = {name for name in tracked("systemd", "config") if not name.endswith(".py")}
    assert {f"share/hmd/{name}" for name in files} <= shared
    for folder, kind in (("container", "json"), ("kubernetes", "yaml"), ("slurm", "sh")):
        assert {
            f"share/hmd/{name.removeprefix('packaging/')}"
            for name in tracked(f"packaging/{folder}")
            if name.endswith(kind)
        } <= shared
    assert {
        "share/man/man1/hmd-run.1",
        "share/man/man5/hmd.yaml.5",
        "share/man/man8/hmd.8",
        "share/bash-completion/completions/hmd",
        "share/zsh/site-functions/_hmd",
        "share/fish/vendor_completions.d/hmd.fish",
    } <= shared


def test_sdist_contains_every_tracked_file(built: Built) -> None:
    made = {"PKG-INFO", "setup.cfg"}
    inside = {name for name in built.sources() if not name.startswith("hmd_tiering.egg-info/")}
    # What lies about untracked in a working tree may be in it too.
    assert tracked() <= inside
    assert made <= inside
    assert not {name for name in inside if name.endswith((".so", ".pyc"))}


def test_sdist_built_from_sdist_has_the_same_files(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shutil.unpack_archive(built.sdist, tmp_path)
    build(tmp_path / f"hmd_tiering-{__version__}", tmp_path, "--sdist")
    assert Built(tmp_path / built.sdist.name, built.wheel).sources() == built.sources()


def environment_without_checkout() -> dict[str, str]:
    """Return the environment without what makes Python find the checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


@pytest.fixture(scope="module")
def prefix(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; the libraries are those of the one that tests run in."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
    options = ["--no-deps", "--no-index", str(built.wheel)]
    subprocess.run(
        [*pip, "install", *options],
        check=True,
        capture_output=True,
        timeout=120,
        cwd="/",
        env=environment_without_checkout(),
    )
    # A folder that is named this way has its own .pth files left out, and so hmd's checkout.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    added = folder / f"lib/{version}/site-packages/libraries.pth"
    added.write_text(f"{sysconfig.get_path('platlib')}\n")
    return folder


def installed(prefix: Path, *words: str) -> str:
    """Run the installed hmd away from the checkout; return what it prints."""
    done = subprocess.run(
        [str(prefix / "bin/hmd"), *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env=environment_without_checkout(),
    )
    return done.stdout


def test_installed_command_prints_help_version_and_data(prefix: Path) -> None:
    assert "hmd run" in installed(prefix, "--help")
    assert installed(prefix, "--version").split() == ["hmd", __version__]
    assert '"tier"' in installed(prefix, "topology", "--json")
    assert "histogram" in installed(prefix, "policy", "list")
    example = prefix / "share/hmd/config/hmd.yaml"
    assert installed(prefix, "config", "check", str(example)) == f"{example}: ok, 1 warning\n"
    assert "dram-pm" in installed(prefix, "emulate", "--list")


def test_installed_command_imports_the_installed_package(prefix: Path) -> None:
    done = subprocess.run(
        [str(prefix / "bin/python"), "-I", "-c", "import hmd._native as n; print(n.__file__)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(prefix)


def test_man_finds_pages_of_the_installation_prefix(prefix: Path) -> None:
    man = shutil.which("man")
    assert man, "needs the Debian package man-db: run `make setup`"
    found = subprocess.run(
        [man, "--where", "hmd-run"],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin"},
    )
    assert found.stdout.strip() == f"{prefix}/share/man/man1/hmd-run.1"
