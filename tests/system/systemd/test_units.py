"""The units that are shipped, by systemd's own checkers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hmd.errors import Exit
from hmd.machine.privileges import Capability

UNITS = Path(__file__).parents[3] / "systemd"
SERVICE = UNITS / "hmd.service"
SAMPLERS = sorted(path.stem for path in (UNITS / "samplers").glob("*.conf"))
EXPOSURE = {"damon": 22, "emulated": 25, "idle": 25, "softdirty": 20}
"""What a sampler may be exposed by at most, in tenths; the service alone by 20."""

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A directory of units, in which the service is, with drop-ins; its path is returned."""

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


def test_the_service_is_exposed_little(folder: Folder) -> None:
    exposure(folder(), 20)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_samplers_need_more_exposes_little_more(folder: Folder, sampler: str) -> None:
    exposure(folder(sampler), EXPOSURE[sampler])


@pytest.mark.parametrize("samplers", [(), *((name,) for name in SAMPLERS)])
def test_systemd_has_nothing_to_say_of_it(folder: Folder, samplers: tuple[str, ...]) -> None:
    # The path of hmd is another here, and its manual pages are not installed.
    service = folder(*samplers, hmd="/bin/true")
    done = analyze("verify", "--man=no", "--recursive-errors=no", service)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verify_sees_a_mistake(folder: Folder) -> None:
    service = folder(hmd="/bin/true")
    service.write_text(service.read_text().replace("WatchdogSec=60", "WatchdogSex=60"))
    assert "WatchdogSex" in analyze("verify", "--man=no", "--recursive-errors=no", service).stderr


def settings(path: Path, name: str) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        word for line in lines if line.startswith(f"{name}=") for word in line.split("=")[1].split()
    ]


@pytest.mark.parametrize("path", [SERVICE, *(UNITS / "samplers").glob("*.conf")])
def test_what_it_may_have_it_has(path: Path) -> None:
    """Capabilities that are bounded but not ambient would be none for another user than root."""
    bounded = settings(path, "CapabilityBoundingSet")
    assert bounded == settings(path, "AmbientCapabilities")
    known = {f"CAP_{capability.name}" for capability in Capability}
    assert set(bounded) <= known


def test_what_starting_again_cannot_mend_is_not_started_again() -> None:
    codes = [Exit.USAGE, Exit.CONFIG, Exit.MISSING, Exit.NOT_PERMITTED]
    assert settings(SERVICE, "RestartPreventExitStatus") == [str(int(code)) for code in codes]


def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    words = ["systemd-sysusers", f"--root={tmp_path}", str(UNITS / "sysusers.d" / "hmd.conf")]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    user = settings(SERVICE, "User")[0]
    fields = (tmp_path / "etc" / "passwd").read_text().split(":")
    assert (fields[0], fields[5], fields[6].strip()) == (user, "/var/lib/hmd", "/usr/sbin/nologin")
    assert (tmp_path / "etc" / "group").read_text().startswith(f"{settings(SERVICE, 'Group')[0]}:")


def test_directories_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("hmd:x:990:990::/var/lib/hmd:/usr/sbin/nologin\n")
    (tmp_path / "etc" / "group").write_text("hmd:x:990:\n")
    conf = UNITS / "tmpfiles.d" / "hmd.conf"
    words = ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(conf)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    run = (tmp_path / "run" / "hmd").stat()
    assert (run.st_uid, run.st_gid, run.st_mode & 0o777) == (990, 990, 0o755)
    targets = (tmp_path / "run" / "hmd" / "hmd.d").stat()
    assert (targets.st_uid, targets.st_mode & 0o777) == (0, 0o755)
