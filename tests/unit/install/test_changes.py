# SPDX-License-Identifier: MIT
"""The changes of hmd enable and hmd disable, in a temporary root directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.errors import Exit, UsageError
from hmd.base.paths import CONFIG_FILE
from hmd.cli.main import main
from hmd.daemon.install import (
    FAR,
    PAGE_CACHE,
    SAMPLER,
    SYSCTL,
    SYSUSERS_PATH,
    TMPFILES_PATH,
    UNIT_PATH,
    InstallChanges,
    far_unit,
    plan_disable,
    plan_enable,
    shipped_folder,
)

HMD = Path("/opt/hmd/bin/hmd")


def enable(
    root: Path, hmd: Path = HMD, sampler: str = "pmu", *, start: bool = True
) -> InstallChanges:
    return plan_enable(shipped_folder(), hmd, sampler, start=start, root=root)


def kinds(plan: InstallChanges, root: Path) -> dict[Path, str]:
    return {Path("/") / file.path.relative_to(root): file.kind for file in plan.files}


def apply(plan: InstallChanges) -> None:
    for file in plan.changes:
        file.apply()


def test_enable_fresh_machine_creates_all_files(tmp_path: Path) -> None:
    plan = enable(tmp_path)
    assert kinds(plan, tmp_path) == dict.fromkeys(
        (CONFIG_FILE, SYSUSERS_PATH, TMPFILES_PATH, UNIT_PATH), "create"
    )
    assert plan.commands[-1] == ("systemctl", "restart", "hmd.service")
    assert not list(tmp_path.iterdir())
    apply(plan)
    unit = (tmp_path / "etc/systemd/system/hmd.service").read_text()
    assert f"ExecStart={HMD} run --config /etc/hmd/hmd.yaml" in unit
    assert set(kinds(enable(tmp_path), tmp_path).values()) == {"keep"}


@pytest.mark.parametrize(
    ("sampler", "paranoid", "set_to_2"),
    [("pmu", 3, True), ("faults", 4, True), ("pmu", 2, False), ("damon", 3, False)],
)
def test_enable_perf_event_paranoid_above_2_writes_sysctl(
    tmp_path: Path, sampler: str, paranoid: int, set_to_2: bool
) -> None:
    value = tmp_path / "proc/sys/kernel/perf_event_paranoid"
    value.parent.mkdir(parents=True)
    value.write_text(f"{paranoid}\n")
    plan = enable(tmp_path, sampler=sampler)
    assert (SYSCTL in kinds(plan, tmp_path)) == set_to_2
    assert (("sysctl", "-p", str(SYSCTL)) in plan.commands) == set_to_2
    apply(plan)
    if set_to_2:
        there = tmp_path / SYSCTL.relative_to("/")
        assert there.read_text().splitlines()[-1] == "kernel.perf_event_paranoid = 2"
        apply(plan_disable(tmp_path))
        assert not there.exists()


def test_enable_no_start_has_no_restart_command(tmp_path: Path) -> None:
    assert not any("restart" in words for words in enable(tmp_path, start=False).commands)


def test_enable_existing_configuration_kept(tmp_path: Path) -> None:
    config = tmp_path / "etc/hmd/hmd.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("tick: 3s\n")
    plan = enable(tmp_path)
    assert kinds(plan, tmp_path)[CONFIG_FILE] == "keep"
    apply(plan)
    assert config.read_text() == "tick: 3s\n"


def test_enable_edited_unit_shown_as_diff(tmp_path: Path) -> None:
    apply(enable(tmp_path))
    unit = tmp_path / "etc/systemd/system/hmd.service"
    unit.write_text(unit.read_text().replace("CPUWeight=50", "CPUWeight=10"))
    plan = enable(tmp_path)
    assert [file.kind for file in plan.changes] == ["change"]
    diff = plan.changes[0].diff().splitlines()
    assert [line for line in diff if line.startswith(("-C", "+C"))] == [
        "-CPUWeight=10",
        "+CPUWeight=50",
    ]


def test_enable_other_sampler_removes_previous_drop_in(tmp_path: Path) -> None:
    apply(enable(tmp_path, sampler="damon"))
    drop_in = tmp_path / SAMPLER.relative_to("/")
    assert "/sys/kernel/mm/damon" in drop_in.read_text()
    plan = enable(tmp_path, sampler="pmu")
    assert kinds(plan, tmp_path)[SAMPLER] == "remove"
    apply(plan)
    assert not drop_in.exists()


@pytest.mark.parametrize(("sampler", "needs_it"), [("pmu", True), ("damon", False)])
def test_enable_with_headroom_from_page_cache_lets_hmd_use_damon(
    tmp_path: Path, sampler: str, needs_it: bool
) -> None:
    plan = plan_enable(
        shipped_folder(), HMD, sampler, start=True, root=tmp_path, demotes_cache=True
    )
    assert (PAGE_CACHE in kinds(plan, tmp_path)) == needs_it
    apply(plan)
    there = [path.relative_to("/") for path in (SAMPLER, PAGE_CACHE)]
    written = [tmp_path / path for path in there if (tmp_path / path).exists()]
    assert ["/sys/kernel/mm/damon" in path.read_text() for path in written] == [True]
    apply(plan_disable(tmp_path))
    assert not any(path.exists() for path in written)


@pytest.mark.parametrize(
    ("place", "hides", "shows"),
    [
        ("/home/me/venv", "ProtectHome=yes", "ProtectHome=read-only"),
        ("/root/venv", "ProtectHome=yes", "ProtectHome=read-only"),
        ("/tmp/venv", "PrivateTmp=yes", "PrivateTmp=no"),
    ],
)
def test_enable_hmd_under_home_or_tmp_unit_relaxes_sandbox(
    tmp_path: Path, place: str, hides: str, shows: str
) -> None:
    unit = {file.path.name: file.after for file in enable(tmp_path).files}["hmd.service"]
    assert unit is not None
    assert hides in unit
    apply(enable(tmp_path, Path(place) / "bin/hmd"))
    written = (tmp_path / "etc/systemd/system/hmd.service").read_text()
    assert f"\n{shows}\n" in written
    assert hides not in written


def test_enable_hmd_in_a_folder_closed_to_others_is_found_by_what_systemd_starts(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed/bin"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    for hmd, start in ((closed / "hmd", "/usr/bin/env "), (HMD, "")):
        unit = {f.path.name: f.after or "" for f in enable(tmp_path, hmd).files}
        assert f"\nExecStart={start}{hmd} run " in unit["hmd.service"]


def test_enable_packaged_unit_creates_configuration_only(tmp_path: Path) -> None:
    packaged = tmp_path / "usr/lib/systemd/system/hmd.service"
    packaged.parent.mkdir(parents=True)
    packaged.write_text("[Service]\n")
    assert set(kinds(enable(tmp_path, Path("/usr/bin/hmd")), tmp_path)) == {CONFIG_FILE}
    # Another hmd than the package's has a unit of its own over it.
    assert UNIT_PATH in kinds(enable(tmp_path), tmp_path)


def test_disable_after_enable_removes_all_but_configuration(tmp_path: Path) -> None:
    apply(enable(tmp_path, sampler="damon"))
    plan = plan_disable(tmp_path)
    assert plan.before == (("systemctl", "disable", "--now", "hmd.service"),)
    assert set(kinds(plan, tmp_path).values()) == {"remove"}
    apply(plan)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [
        tmp_path / CONFIG_FILE.relative_to("/")
    ]


def test_change_apply_failed_old_file_kept(tmp_path: Path) -> None:
    plan = enable(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hmd").write_text("in the way")
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        apply(plan)
    assert (tmp_path / "etc/hmd").read_text() == "in the way"


def test_enable_dry_run_json_lists_changed_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["enable", "--sampler", "damon", "--dry-run", "--json", "--root", str(tmp_path)]
    assert main(words) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert {"path": str(tmp_path / SAMPLER.relative_to("/")), "kind": "create"} in document["files"]
    assert not list(tmp_path.iterdir())


def test_enable_without_systemd_exits_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--yes", "--sampler", "pmu", "--root", str(tmp_path)]
    assert main(["enable", *words]) == Exit.MISSING
    assert "systemd does not run here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_enable_without_terminal_exits_usage_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    hmd = [sys.executable, "-m", "hmd"]
    done = subprocess.run(
        [*hmd, "enable", "--sampler", "pmu", "--accept-writable", "--root", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.USAGE
    assert done.stderr == (
        "hmd: standard input is not a terminal: add --yes to apply, or --dry-run\n"
    )
    assert not (tmp_path / "etc").exists()


def test_enable_unknown_sampler_exits_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["enable", "--sampler", "radar", "--root", str(tmp_path)]) == Exit.USAGE
    assert "no sampler 'radar': take one of pmu, " in capsys.readouterr().err


@pytest.mark.parametrize(("gib", "limit"), [(16, 4), (1024, 51)])
def test_enable_memory_limit_follows_machine(tmp_path: Path, gib: int, limit: int) -> None:
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {gib << 20} kB\n")
    changes = enable(tmp_path, sampler="faults", start=False)
    (unit,) = [c.after for c in changes.files if c.path == tmp_path / UNIT_PATH.relative_to("/")]
    assert unit is not None
    assert f"MemoryMax={limit}G\n" in unit


def with_far(root: Path, far: str) -> InstallChanges:
    unit = far_unit(shipped_folder(), far, root)
    return plan_enable(shipped_folder(), HMD, "pmu", start=True, root=root, far=unit)


def test_enable_far_zram_is_a_unit_that_disable_stops_and_removes(tmp_path: Path) -> None:
    plan = with_far(tmp_path, "zram:8GiB")
    assert kinds(plan, tmp_path)[FAR] == "create"
    assert ("systemctl", "enable", "--now", "hmd-far.service") in plan.commands
    assert plan.before == ()
    assert any("8589934592 bytes of swap" in note for note in plan.notes)
    apply(plan)
    unit = (tmp_path / FAR.relative_to("/")).read_text()
    assert "echo 8589934592 >/sys/block/zram" in unit
    assert "@" not in unit
    again = with_far(tmp_path, "zram:8GiB")
    assert (kinds(again, tmp_path)[FAR], again.before) == ("keep", ())
    # The service without far memory, enabled again, leaves it as it is.
    assert FAR not in kinds(enable(tmp_path), tmp_path)
    gone = plan_disable(tmp_path)
    assert gone.before[-1] == ("systemctl", "disable", "--now", "hmd-far.service")
    apply(gone)
    assert not (tmp_path / FAR.relative_to("/")).exists()
    assert len(plan_disable(tmp_path).before) == 1


def test_enable_other_far_memory_stops_the_former_by_its_own_unit(tmp_path: Path) -> None:
    apply(with_far(tmp_path, "zram:8GiB"))
    plan = with_far(tmp_path, "zram:9GiB")
    assert plan.before == (("systemctl", "stop", "hmd-far.service"),)


def test_enable_far_disk_has_to_be_there_and_without_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a disk"):
        with_far(tmp_path, "/dev/nvme0n1")
    (tmp_path / "sys/class/block/nvme0n1").mkdir(parents=True)
    mounts = tmp_path / "proc/mounts"
    mounts.parent.mkdir()
    mounts.write_text("/dev/nvme0n1 /data ext4 rw 0 0\n")
    with pytest.raises(UsageError, match="is mounted on /data: name a disk"):
        with_far(tmp_path, "/dev/nvme0n1")
    mounts.unlink()
    apply(with_far(tmp_path, "/dev/nvme0n1"))
    swaps = "Filename Type Size Used Priority\n/dev/nvme0n1 partition 8 0 50\n"
    (tmp_path / "proc/swaps").write_text(swaps)
    assert kinds(with_far(tmp_path, "/dev/nvme0n1"), tmp_path)[FAR] == "keep"


@pytest.mark.parametrize(
    ("far", "server"),
    [
        ("nbd:far.example/memory", "far.example 10809 memory"),
        ("nbd:192.0.2.7:4000/m-1", "192.0.2.7 4000 m-1"),
        ("nbd:[2001:db8::7]/memory", "2001:db8::7 10809 memory"),
    ],
)
def test_enable_far_nbd_is_a_client_with_swap_of_its_own(
    tmp_path: Path, far: str, server: str
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("one\n")
    unit = far_unit(shipped_folder(), far, tmp_path)
    assert f"{sys.executable} -m hmd.daemon.nbd_client {server} " in unit
    assert "@" not in unit
    assert far_unit(shipped_folder(), far, tmp_path) == unit
    # Two machines that take one export do not write over each other.
    (tmp_path / "etc/machine-id").write_text("two\n")
    assert far_unit(shipped_folder(), far, tmp_path) != unit


@pytest.mark.parametrize(
    "far",
    [
        *("zram", "zram:8", "/dev/../etc/passwd", "nvme0n1"),
        *("nbd://h", "nbd:h", "nbd:h/", "nbd:h:x/m", "nbd:h/a b", "nbd:h;true/m", "nbd:h/m%n"),
    ],
)
def test_enable_far_of_another_form_says_which_are_taken(tmp_path: Path, far: str) -> None:
    with pytest.raises(UsageError, match="write"):
        far_unit(shipped_folder(), far, tmp_path)


@pytest.mark.parametrize("machine", [None, "", "\n", "uninitialized\n"])
def test_enable_far_nbd_without_machine_id_refused(tmp_path: Path, machine: str | None) -> None:
    (tmp_path / "etc").mkdir()
    if machine is not None:
        (tmp_path / "etc/machine-id").write_text(machine)
    with pytest.raises(UsageError, match="machine-id has no id"):
        far_unit(shipped_folder(), "nbd:h/m", tmp_path)


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_enable_far_nbd_port_that_is_none_refused(tmp_path: Path, port: int) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("one\n")
    with pytest.raises(UsageError, match="a port is from 1 to 65535"):
        far_unit(shipped_folder(), f"nbd:h:{port}/m", tmp_path)
