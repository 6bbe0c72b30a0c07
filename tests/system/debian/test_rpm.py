# SPDX-License-Identifier: MIT
"""The RPM for Rocky Linux and RHEL 9: built on Debian, unpacked, and installed there by rpm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.debian import booted, make_debian
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


@pytest.mark.timeout(2400)
def test_rpm_scripts_install_upgrade_and_erase(rpm: Path, tmp_path: Path) -> None:
    """By rpm itself, on a booted Debian 12: its systemd is EL 9's (252), its Python 3.11."""
    folder = tmp_path / "debian"
    make_debian(folder, "--variant=important", "--include=python3,rpm,libnuma1,util-linux")
    shutil.copy(rpm, folder / "root/hmd.rpm")
    with booted(folder) as machine:
        machine.run("rpm", "--install", "--nodeps", "/root/hmd.rpm", timeout_s=1200)
        user = machine.run("getent", "passwd", "hmd")
        assert user.endswith("::/var/lib/hmd:/usr/sbin/nologin\n")
        state = machine.show("ActiveState", "UnitFileState")
        assert state == {"ActiveState": "inactive", "UnitFileState": "disabled"}
        assert list((folder / "usr/lib/hmd").rglob("*.nbc"))
        config = "targets: [{name: log, exe: systemd-journald}]\n"
        (folder / "etc/hmd/hmd.yaml").write_text(config)
        machine.run("systemctl", "enable", "--now", "hmd")
        before = machine.show("MainPID", "ActiveState")
        machine.run("rpm", "--upgrade", "--force", "--nodeps", "/root/hmd.rpm", timeout_s=1200)
        after = machine.show("MainPID", "ActiveState")
        assert before["ActiveState"] == after["ActiveState"] == "active"
        assert before["MainPID"] != after["MainPID"]
        assert (folder / "etc/hmd/hmd.yaml").read_text() == config
        machine.run("rpm", "--erase", "--nodeps", "hmd")
        left = machine.run("ls", "/usr/lib/hmd", "/run/hmd", "/run/hmd.d", "/var/cache/hmd", code=2)
        assert left.count("No such file") == 4, left
        assert machine.show("ActiveState")["ActiveState"] == "inactive"
        assert (folder / "etc/hmd/hmd.yaml.rpmsave").read_text() == config
    shutil.rmtree(folder)
