# SPDX-License-Identifier: MIT
"""The daemon in the guest as a systemd service: promotion, reload, watchdog and stop.

tests/vm/programs/daemon.py installs and starts it, reloads it, lets it hang, lets its target exit
and stops it, all in one run; these tests check the result.
"""

from __future__ import annotations

from typing import Any

import pytest

MIB = 1 << 20
HOT_BYTES = 12 * MIB
"""Three quarters of the program's memory, all of which is hot."""

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def found(served: dict[str, Any]) -> dict[str, Any]:
    return served


def test_enable_lists_changes(found: dict[str, Any]) -> None:
    shown = {" ".join(line.split()) for line in found["shown"].splitlines()}
    wanted = {
        "create /etc/systemd/system/hmd.service",
        "create /etc/systemd/system/hmd.service.d/10-sampler.conf",
        "keep /etc/hmd/hmd.yaml",
        "run systemctl enable hmd.service",
    }
    assert wanted <= shown
    assert "sampler: emulated, which needs emulated.conf" in found["shown"]


def test_service_runs_as_unprivileged_user(found: dict[str, Any]) -> None:
    service = found["service"]
    assert (service["User"], service["ActiveState"], service["NRestarts"]) == ("hmd", "active", "0")
    assert found["owner"] not in (0, 65534)
    assert "1 processes of 1 targets, sampler emulated" in service["StatusText"]


def test_status_first_answer_shows_tiers_and_program(found: dict[str, Any]) -> None:
    first = found["first"]
    assert first["tiers"] == [[0], [1]]
    assert first["sampler"]["name"] == "emulated"
    assert [p["name"] for p in first["processes"]] == ["gather"]


def test_daemon_hot_pages_on_slow_node_promoted(found: dict[str, Any]) -> None:
    process = found["promoted"]["processes"][0]
    fast, slow = process["resident_bytes"]
    assert fast > HOT_BYTES > slow
    assert process["promoted_bytes"] >= HOT_BYTES
    assert process["fast_share"] > 0.75
    assert found["promoted"]["moves"]["promoted_bytes"] >= process["promoted_bytes"]


def test_daemon_waits_are_counted_by_modelled_clock(found: dict[str, Any]) -> None:
    # By the guest's clock, which is 50 times as fast, the program hardly waits for memory.
    runtime = found["demanding"]["targets"][0]["demand"]["runtime"]
    # At most, it does nothing but wait: 265 ns of each load instead of 61.
    assert 1.2 < runtime[0] <= 265 / 61


def test_metrics_after_promotion_agree_with_status(found: dict[str, Any]) -> None:
    metrics = found["metrics"]
    flow = "hmd_moved_bytes_total from_numa_node=1 from_tier=1 to_numa_node=0 to_tier=0"
    assert metrics[flow] >= HOT_BYTES
    assert metrics["hmd_target_promoted_bytes_total target=gather"] >= HOT_BYTES
    assert metrics["hmd_target_fast_access_ratio target=gather"] > 0.75
    assert metrics["hmd_target_resident_bytes target=gather tier=0"] > HOT_BYTES
    assert metrics["hmd_samples_total"] > 100
    assert metrics["hmd_sampler_info sampler=emulated"] == 1
    assert metrics["hmd_node_tier numa_node=1"] == 1
    assert sum(v for k, v in metrics.items() if k.startswith("hmd_heat_pages ")) >= 16 * MIB / 4096


def test_daemon_hanging_killed_by_watchdog_and_restarted(found: dict[str, Any]) -> None:
    restarted = found["restarted"]
    assert restarted["pid"] != found["mended"]["pid"]
    assert restarted["processes"][0]["pid"] == found["mended"]["processes"][0]["pid"]
    assert found["after_hang"] == {"ActiveState": "active", "NRestarts": "1"}


def test_reload_invalid_configuration_keeps_old_one(found: dict[str, Any]) -> None:
    broken, after = found["broken"], found["after_broken"]
    assert found["broken_reload_code"] == 1  # which systemctl says, too
    assert broken["pid"] == after["pid"] == found["promoted"]["pid"]
    assert "'tick' is already set in line 1" in broken["reload"]["error"]
    assert found["broken_metrics"]["hmd_config_last_reload_successful"] == 0
    assert [t["name"] for t in after["targets"]] == ["gather"]
    assert after["processes"][0]["pid"] == broken["processes"][0]["pid"]


def test_reload_corrected_configuration_keeps_state(found: dict[str, Any]) -> None:
    assert found["mended"]["ticks"] > found["after_broken"]["ticks"]
    assert found["mended"]["processes"][0]["resident_bytes"][0] > HOT_BYTES


def test_slurm_job_running_is_target(found: dict[str, Any]) -> None:
    names = [target["name"] for target in found["job"]["targets"]]
    assert names == ["gather", "job-4711"]
    assert [target["name"] for target in found["job_ended"]["targets"]] == ["gather"]


def test_daemon_target_exited_no_stage_failures(found: dict[str, Any]) -> None:
    assert found["exited"]["processes"] == []
    for when in ("promoted", "after_broken", "exited"):
        assert not any(found[when]["stage_failures"].values()), found["journal"]


def test_service_stopped_exits_zero_and_removes_socket(found: dict[str, Any]) -> None:
    stopped = {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert found["stopped"] == stopped
    assert not found["socket_left"]


def test_journal_reload_messages_have_priorities(found: dict[str, Any]) -> None:
    said = {row["message"]: row["priority"] for row in found["journal"]}
    assert said["reload failed: the old configuration stays in force"] == 3
    assert said["reloaded /etc/hmd/hmd.yaml"] == 6
    assert not any("Traceback" in message for message in said)
