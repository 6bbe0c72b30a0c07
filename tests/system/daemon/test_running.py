# SPDX-License-Identifier: MIT
"""The daemon as a process: status, log, reload, exit and restart."""

import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.fakes import kvm_guest
from tests.system.daemon.conftest import Daemon, wait_for


def target(process: "subprocess.Popen[bytes]", name: str = "faulter") -> str:
    return f"[{{name: {name}, pid: {process.pid}}}]"


@pytest.fixture
def daemon(module_daemon: Daemon, faulter: "subprocess.Popen[bytes]") -> Daemon:
    """One daemon for all tests here, serving this test's own target."""
    module_daemon.configure(target(faulter))
    if module_daemon.process is None:
        module_daemon.start()
        module_daemon.wait_ready()
    else:
        readies = sum(line.startswith("READY=1") for line in module_daemon.notified())
        module_daemon.signal(signal.SIGHUP)
        module_daemon.wait_ready(readies + 1)
    return module_daemon


def test_daemon_with_running_target_reports_samples_and_metrics(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    def sampled() -> bool:
        processes = daemon.status()["processes"]
        return bool(processes) and processes[0]["samples"] > 100

    wait_for(sampled, "samples of the target")
    status = daemon.status()
    assert [p["pid"] for p in status["processes"]] == [faulter.pid]
    assert status["sampler"]["name"] == "faults"
    assert status["tiers"] == [[0]]
    assert not any(status["stage_failures"].values()), daemon.log.read_text()
    wait_for(lambda: daemon.status()["targets"][0]["resident_bytes"][0] > 1 << 20, "a sweep")
    assert daemon.metric("hmd_target_processes", target="faulter") == 1
    assert daemon.metric("hmd_samples_total") > 100
    assert daemon.metric("hmd_sampler_info", sampler="faults") == 1
    assert daemon.metric("hmd_target_resident_bytes", target="faulter", tier="0") > 0
    assert daemon.metric("hmd_config_last_reload_successful") == 1
    with urllib.request.urlopen(f"http://{daemon.address}/healthz", timeout=20) as health:
        assert health.read().decode().startswith("last tick 0.")


def test_daemon_warns_once_of_faults_sampler_and_single_node(daemon: Daemon) -> None:
    wait_for(lambda: daemon.status()["ticks"] > 5, "ticks")
    log = daemon.log.read_text()
    assert log.count("page faults are a coarse stand-in") == 1
    assert log.count("one memory node") == 1


def test_daemon_names_virtual_machine_whose_guests_it_does_not_see(daemon: Daemon) -> None:
    if not kvm_guest.usable():
        pytest.skip("this host gives no virtual machines (/dev/kvm)")
    program = subprocess.Popen([sys.executable, kvm_guest.__file__], stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline()
        daemon.configure(target(program, "machine"))
        daemon.signal(signal.SIGHUP)
        line = f"pid {program.pid} runs virtual machines, whose accesses faults does not see"
        wait_for(lambda: line in daemon.log.read_text(), "the line of the virtual machine")
    finally:
        program.kill()
        program.communicate()
    assert daemon.log.read_text().count(line) == 1


def test_pageout_with_faults_sampler_has_no_effect(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    ticks = daemon.status()["ticks"]
    limited = f"[{{name: faulter, pid: {faulter.pid}, fast_max: 10%, priority: 2, keep: lib}}]"
    daemon.configure(limited, "decide: {policy: age, pageout: 1s}\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: "decide.pageout has no effect" in daemon.log.read_text(), "a warning")
    wait_for(lambda: daemon.status()["ticks"] > ticks + 40, "two seconds of ticks")
    assert daemon.status()["policy"] == "age"
    assert daemon.metric("hmd_paged_out_bytes_total") == 0
    assert daemon.metric("hmd_stage_failures_total", stage="decide") == 0
    assert daemon.metric("hmd_stage_failures_total", stage="migrate") == 0


def test_reload_of_invalid_file_keeps_configuration(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    before, heard = daemon.status(), len(daemon.notified())
    daemon.config.write_text("tick: 50ms\ntargets:\n- name: other\n  pid: no\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.metric("hmd_config_last_reload_successful") == 0, "a failed reload")
    wait_for(lambda: "reload failed" in daemon.log.read_text(), "a log line")
    line = f"reload: {daemon.config}:4: targets[0].pid: expected a whole number, not 'no'"
    assert line in daemon.log.read_text()
    after = daemon.status()
    assert [t["name"] for t in after["targets"] if t["process_count"]] == ["faulter"]
    assert after["reload"]["error"].endswith("expected a whole number, not 'no'")
    assert after["reload"]["success_s"] == before["reload"]["success_s"]
    wait_for(lambda: daemon.status()["ticks"] > after["ticks"], "ticks after the failure")
    notified = [line for line in daemon.notified()[heard:] if not line.startswith("STATUS")]
    assert notified[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert notified[1].startswith("READY=1")
    daemon.configure(target(faulter))
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.metric("hmd_config_last_reload_successful") == 1, "a good reload")


def test_reload_with_damaged_weights_keeps_policy(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    before = daemon.status()
    damaged = daemon.config.with_name("damaged.npz")
    damaged.write_bytes(b"PK no weights")
    learned = f"decide: {{policy: learned, learned: {{weights: {damaged}}}}}\n"
    daemon.configure(target(faulter), learned)
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.metric("hmd_config_last_reload_successful") == 0, "a failed reload")
    after = daemon.status()
    assert after["policy"] == before["policy"] != "learned"
    assert after["reload"]["error"].startswith(f"weights {damaged}: not usable")
    daemon.configure(target(faulter), "decide: {policy: learned}\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.metric("hmd_config_last_reload_successful") == 1, "a good reload")
    wait_for(lambda: daemon.status()["policy"] == "learned", "the learned policy")
    daemon.configure(target(faulter))
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.status()["policy"] == before["policy"], "the policy of before")


def test_reload_with_busy_metrics_port_fails(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        text = daemon.config.read_text().replace(daemon.address, f"127.0.0.1:{port}")
        daemon.config.write_text(text)
        daemon.signal(signal.SIGHUP)
        wait_for(lambda: not daemon.status()["reload"]["successful"], "a failed reload")
        assert "set observe.metrics to another" in daemon.status()["reload"]["error"]
    assert daemon.metric("hmd_config_last_reload_successful") == 0


def test_reload_with_another_socket_moves_it(daemon: Daemon) -> None:
    text, old = daemon.config.read_text(), daemon.socket
    daemon.socket = old.with_name("other.sock")
    daemon.config.write_text(text.replace(str(old), str(daemon.socket)))
    daemon.signal(signal.SIGHUP)
    wait_for(daemon.socket.exists, "the new socket")
    wait_for(lambda: not old.exists(), "the end of the old socket")
    assert daemon.status()["reload"]["successful"]


def test_heat_survives_reload(daemon: Daemon, faulter: "subprocess.Popen[bytes]") -> None:
    wait_for(
        lambda: daemon.metric("hmd_target_resident_bytes", target="faulter", tier="0"), "a sweep"
    )
    reloads = daemon.status()["reload"]["success_s"]
    daemon.configure(target(faulter), "migrate: {rate: 1MiB/s}\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.status()["reload"]["success_s"] > reloads, "a reload")
    assert daemon.metric("hmd_target_resident_bytes", target="faulter", tier="0") > 0
    wait_for(lambda: daemon.status()["processes"][0]["samples"], "a tick with samples")


def test_ended_target_process_is_dropped(
    daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    wait_for(lambda: daemon.status()["processes"], "the target")
    faulter.kill()
    wait_for(lambda: not daemon.status()["processes"], "the target's end")
    assert not any(daemon.status()["stage_failures"].values()), daemon.log.read_text()


def test_daemon_started_twice_is_refused(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hmd", "run", "--config", str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert daemon.process is not None
    assert f"hmd: another hmd (pid {daemon.process.pid}) already serves" in done.stderr
    assert "Traceback" not in done.stderr
    assert daemon.status()["pid"] == daemon.process.pid


def test_socket_mode_admits_owner_and_group(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660


def test_daemon_killed_and_restarted_serves_again(
    new_daemon: Daemon, faulter: "subprocess.Popen[bytes]"
) -> None:
    new_daemon.configure(target(faulter))
    new_daemon.start()
    new_daemon.wait_ready()
    new_daemon.signal(signal.SIGKILL)
    assert new_daemon.process is not None
    new_daemon.process.wait()
    assert new_daemon.socket.exists()
    new_daemon.start()
    new_daemon.wait_ready(2)
    assert new_daemon.status()["pid"] == new_daemon.process.pid
    wait_for(lambda: new_daemon.status()["ticks"] > 2, "ticks")


def test_reload_during_start_runs_once_when_ready(new_daemon: Daemon) -> None:
    new_daemon.configure("[]")
    new_daemon.start()
    wait_for(lambda: any(line.startswith("EXTEND_") for line in new_daemon.notified()), "its start")
    new_daemon.signal(signal.SIGHUP)
    new_daemon.wait_ready(2)
    assert new_daemon.log.read_text().count("info: reloaded") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_daemon_stopped_by_signal_exits_cleanly(new_daemon: Daemon, number: int) -> None:
    new_daemon.configure("[]", "migrate: {dry_run: true}\n")
    process = new_daemon.start()
    new_daemon.wait_ready()
    new_daemon.signal(number)
    assert process.wait(timeout=30) == 0
    assert not new_daemon.socket.exists()
    assert new_daemon.notified()[-1] == "STOPPING=1\nSTATUS=stopping"
    assert "Traceback" not in new_daemon.log.read_text()
    assert "names no targets" in new_daemon.log.read_text()


def test_run_once_exits_without_messages(new_daemon: Daemon) -> None:
    new_daemon.configure("[]")
    assert new_daemon.start("--once", "--dry-run", "--log-level", "error").wait(60) == 0
    assert new_daemon.log.read_text() == ""


def test_run_ticks_keeps_the_interval(new_daemon: Daemon) -> None:
    new_daemon.configure("[]")
    begun_s = time.monotonic()
    assert new_daemon.start("--ticks", "20").wait(60) == 0
    assert time.monotonic() - begun_s >= 19 * 0.05


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("tick: 1\n", 3, "hmd.yaml:1: tick: write a duration"),
        ("machine: {tiers: [[0], [0]]}\n", 3, "hmd.yaml:1: machine.tiers[1][0]: node 0 is named"),
        ("sample: {sampler: emulated}\n", 4, "hmd: "),
        ("observe: {socket: /proc/hmd.sock}\n", 1, "hmd: cannot use /proc for the status socket"),
    ],
)
def test_failed_start_reports_reason_and_exit_code(
    new_daemon: Daemon, text: str, code: int, message: str
) -> None:
    new_daemon.config.write_text(text)
    assert new_daemon.start("--once").wait(60) == code
    log = new_daemon.log.read_text()
    assert message in log
    assert "Traceback" not in log


def test_daemon_without_processes_loads_no_kernels(daemon: Daemon) -> None:
    daemon.configure("[{name: nothing, exe: no-such-program}]")
    code = (
        "import sys; from hmd.cli.main import main; from bench.scale.plan_memory import peak_mib\n"
        "main(sys.argv[1:])\n"
        "print('numba' in sys.modules, peak_mib() < 120)"
    )
    command = ["run", "--config", str(daemon.config), "--ticks", "3"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
    )
    assert "failed" not in done.stderr
    assert done.stdout == "False True\n"
