# SPDX-License-Identifier: MIT
"""The shipped units, checked by systemd's tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.daemon.install import COMPILE, FAR_NAME, far_unit
from hmd.linux.checks import Capability

UNITS = Path(__file__).parents[3] / "systemd"
SERVICE = UNITS / "hmd.service"
SAMPLERS = sorted(path.stem for path in (UNITS / "samplers").glob("*.conf"))
EXPOSURE = {"damon": 22, "emulated": 25, "idle": 25}
"""What a sampler may be exposed by at most, in tenths; the service alone by 21."""

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A directory with the service and drop-ins; returns the path of the service."""

    def made(*samplers: str, hmd: str = "/usr/bin/hmd") -> Path:
        service = tmp_path / "hmd.service"
        service.write_text(SERVICE.read_text().replace("/usr/bin/hmd", hmd))
        for name in samplers:
            drop_ins = tmp_path / "hmd.service.d"
            drop_ins.mkdir(exist_ok=True)
            shutil.copy(UNITS / "samplers" / f"{name}.conf", drop_ins)
        return service

    return made


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning", "LC_ALL": "C"}
    return subprocess.run(
        ["systemd-analyze", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        check=False,
    )


def exposure(service: Path, tenths: int) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={tenths}", service)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_service_exposure_is_below_limit(folder: Folder) -> None:
    exposure(folder(), 21)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_service_with_sampler_exposure_is_below_limit(folder: Folder, sampler: str) -> None:
    exposure(folder(sampler), EXPOSURE[sampler])


@pytest.mark.parametrize("samplers", [(), *((name,) for name in SAMPLERS)])
def test_systemd_verify_reports_nothing(folder: Folder, samplers: tuple[str, ...]) -> None:
    # The path of hmd is another here, and its manual pages are not installed.
    service = folder(*samplers, hmd="/bin/true")
    done = analyze("verify", "--man=no", "--recursive-errors=no", service)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_verify_of_misspelt_setting_reports_it(folder: Folder) -> None:
    service = folder(hmd="/bin/true")
    service.write_text(service.read_text().replace("WatchdogSec=60", "WatchdogSex=60"))
    assert "WatchdogSex" in analyze("verify", "--man=no", "--recursive-errors=no", service).stderr


def settings(path: Path, name: str) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        word for line in lines if line.startswith(f"{name}=") for word in line.split("=")[1].split()
    ]


@pytest.mark.parametrize("path", [SERVICE, *(UNITS / "samplers").glob("*.conf")])
def test_bounding_capabilities_are_also_ambient(path: Path) -> None:
    """A capability that is bounded but not ambient has no effect for a user other than root."""
    bounded = settings(path, "CapabilityBoundingSet")
    assert bounded == settings(path, "AmbientCapabilities")
    known = {f"CAP_{capability.name}" for capability in Capability}
    assert set(bounded) <= known


def test_service_is_not_restarted_after_permanent_errors() -> None:
    codes = [Exit.USAGE, Exit.CONFIG, Exit.MISSING, Exit.NOT_PERMITTED]
    assert settings(SERVICE, "RestartPreventExitStatus") == [str(int(code)) for code in codes]


def test_sysusers_creates_user_and_group(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    words = ["systemd-sysusers", f"--root={tmp_path}", str(UNITS / "sysusers.d" / "hmd.conf")]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    user = settings(SERVICE, "User")[0]
    fields = (tmp_path / "etc" / "passwd").read_text().split(":")
    assert (fields[0], fields[5], fields[6].strip()) == (user, "/var/lib/hmd", "/usr/sbin/nologin")
    assert (tmp_path / "etc" / "group").read_text().startswith(f"{settings(SERVICE, 'Group')[0]}:")


def test_tmpfiles_creates_run_directories(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("hmd:x:990:990::/var/lib/hmd:/usr/sbin/nologin\n")
    (tmp_path / "etc" / "group").write_text("hmd:x:990:\n")
    conf = UNITS / "tmpfiles.d" / "hmd.conf"
    words = ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(conf)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    run = (tmp_path / "run" / "hmd").stat()
    assert (run.st_uid, run.st_gid, run.st_mode & 0o777) == (990, 990, 0o755)
    targets = (tmp_path / "run" / "hmd.d").stat()
    assert (targets.st_uid, targets.st_mode & 0o777) == (0, 0o755)


@pytest.mark.parametrize("far", ["zram:1GiB", "/dev/nvme0n1", "nbd:far.example/memory"])
def test_systemd_verify_of_far_memory_reports_nothing(tmp_path: Path, far: str) -> None:
    (tmp_path / "sys/class/block/nvme0n1").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("one\n")
    service = tmp_path / FAR_NAME
    # Not every machine that runs the tests loads modules.
    service.write_text(far_unit(UNITS.parent, far, tmp_path).replace("modprobe", "true"))
    done = analyze("verify", "--man=no", "--recursive-errors=no", service)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_compiler_of_the_service_reads_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "file"
    file.write_text("in a clone of root's")
    words = [word.replace("=hmd", "=65534") for word in COMPILE]
    done = subprocess.run([*words, "cat", file], capture_output=True, text=True, check=False)
    assert done.stdout == file.read_text(), done.stderr
