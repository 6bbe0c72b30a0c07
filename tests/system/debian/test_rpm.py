# SPDX-License-Identifier: MIT
"""The RPM for Rocky Linux and RHEL 9: built on Debian, unpacked, and its hmd run by this Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hmd import __version__
from tests.system.debian.conftest import ROOT

pytestmark = [
    pytest.mark.timeout(900),
]


def output_of(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def rpm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rpm")
    output_of(ROOT / "packaging/build_rpm.sh", folder)
    return folder / f"hmd-{__version__}-1.el9.x86_64.rpm"


def test_rpm_needs_el9s_python_and_libnuma(rpm: Path) -> None:
    needs = output_of("rpm", "--query", "--requires", "--package", rpm).splitlines()
    assert {"python3.11", "numactl-libs >= 2.0.11", "glibc >= 2.34"} <= set(needs)
    assert output_of("rpm", "--query", "--configfiles", "--package", rpm) == "/etc/hmd/hmd.yaml\n"
    assert (rpm.parent / f"{rpm.stem}.cdx.json").is_file()


def test_rpm_unpacked_runs_hmd_with_its_own_libraries(rpm: Path, tmp_path: Path) -> None:
    # Its scripts need users and systemd of the system that it is for.
    output_of("rpm", "--root", tmp_path, "--nodeps", "--noscripts", "--install", rpm)
    for path in (
        *("usr/lib/systemd/system/hmd.service", "usr/lib/sysusers.d/hmd.conf"),
        *("usr/share/man/man1/hmd.1.gz", "usr/share/zsh/site-functions/_hmd"),
        *("usr/share/doc/hmd/README.md", "usr/share/hmd/systemd/samplers/damon.conf"),
    ):
        assert (tmp_path / path).is_file(), path
    python = tmp_path / "usr/lib/hmd/bin/python"
    assert output_of(python, "-I", "-m", "hmd", "--version") == f"hmd {__version__}\n"
    script = "import hmd._native, hmd.emulate._timing, numba; print(numba.__file__)"
    assert output_of(python, "-I", "-c", script).startswith(str(tmp_path))
    symbols = "".join(
        output_of("objdump", "-T", module) for module in tmp_path.rglob("hmd/**/_*.abi3.so")
    )
    versions = {
        tuple(map(int, word.strip("()").removeprefix("GLIBC_").split(".")))
        for word in symbols.split()
        if word.strip("()").startswith("GLIBC_2")
    }
    assert versions and max(versions) <= (2, 34)
