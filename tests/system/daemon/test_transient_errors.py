# SPDX-License-Identifier: MIT
"""What the kernel refuses for now neither ends the daemon nor lowers it for good."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import Exit, TransientError
from hmd.config.load import loads
from hmd.daemon import service, supervisors
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier
from hmd.linux.topology import ONLINE
from hmd.metrics.status import Stage
from hmd.sample.perf_events import PerfError
from hmd.sample.periods import PeriodControl


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A machine with one node and CPU 0, whose files a test may change."""
    node = tmp_path / "sys/devices/system/node"
    (node / "node0").mkdir(parents=True)
    (node / "node0/meminfo").write_text("Node 0 MemTotal: 524288 kB\nNode 0 MemFree: 524288 kB\n")
    (node / "node0/cpulist").write_text("0-1\n")
    (node / "node0/distance").write_text("10\n")
    (node / "has_memory").write_text("0\n")
    (tmp_path / "sys" / ONLINE).parent.mkdir(parents=True)
    (tmp_path / "sys" / ONLINE).write_text("0\n")
    return tmp_path / "sys"


@pytest.fixture
def running(tmp_path: Path, sysfs: Path) -> Iterator[Service]:
    text = (
        "tick: 50ms\ntargets: [{name: one, pid: 1}]\nsample: {sampler: faults}\n"
        f"observe: {{metrics: 'off', socket: {tmp_path}/hmd.sock}}\n"
    )
    made = Service(lambda: loads(text, "test"), "test", Notifier({}), sysfs=sysfs)
    yield made
    made.close()


def test_daemon_goes_on_when_period_cannot_be_set(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = running.stages.sampler

    def busy(period: int) -> int:
        raise PerfError(errno.EBUSY, f"cannot set period {period}")

    monkeypatch.setattr(sampler, "set_period", busy)
    monkeypatch.setattr(PeriodControl, "update", lambda *_: sampler.period + 1)
    running.run(ticks=4)
    latest = running.observer.latest
    assert latest.ticks == 4
    assert latest.stage_failures[Stage.SAMPLE] == 3


def test_daemon_goes_on_when_tick_fails_outside_all_stages(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.ENOMEM, "no memory"), OSError(errno.EMFILE, "descriptors")])

    def summarise(_now_s: float) -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    monkeypatch.setattr(running._target_log, "summarise", summarise)
    running.run(ticks=5)
    assert running.observer.latest.ticks == 3


def test_daemon_ends_to_be_restarted_when_every_tick_fails(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_now_s: float) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(running._target_log, "summarise", fail)
    monkeypatch.setattr(service, "MAX_LOST_TICKS", 4)
    with pytest.raises(TransientError, match="4 ticks failed in a row") as raised:
        running.run(ticks=100)
    assert raised.value.exit_code == Exit.RETRY
    assert int(Exit.RETRY) == 75


def test_sampler_follows_cpus_that_come_and_go(running: Service, sysfs: Path) -> None:
    running.tick(0.0)
    first = running.stages.sampler
    assert first.detail == "page faults on 1 CPUs"
    (sysfs / ONLINE).write_text("0-1\n")
    tick = running.tick(1.0)
    assert running.stages.sampler is not first
    assert running.stages.sampler.detail == "page faults on 2 CPUs"
    assert not tick.failed
    assert running.stages.tracked.processes == tick.processes
    assert tick.processes
    (sysfs / ONLINE).write_text("0\n")
    running.tick(2.0)
    assert running.stages.sampler.detail == "page faults on 1 CPUs"


def test_failing_sampler_opened_again(running: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    running.tick(0.0)
    broken = running.stages.sampler

    def fail() -> None:
        raise PerfError(errno.ENODEV, "the event is gone")

    monkeypatch.setattr(broken, "read", fail)
    for second in range(1, 6):
        assert Stage.SAMPLE in running.tick(float(second)).failed
    running.tick(supervisors.RETRY_S + 1.0)
    assert running.stages.sampler is not broken
    assert not running.tick(supervisors.RETRY_S + 2.0).failed


def test_start_without_descriptors_exits_to_be_restarted(tmp_path: Path) -> None:
    """A limit of descriptors that holds from the start, without the pauses of half a minute."""
    config = tmp_path / "hmd.yaml"
    config.write_text(
        "targets: [{name: one, pid: 1}]\nsample: {sampler: faults}\n"
        f"observe: {{metrics: 'off', socket: {tmp_path}/hmd.sock}}\n"
    )
    program = (
        "import sys; from hmd.cli import run_command; run_command.START_PAUSES_S = (0,);"
        "from hmd.cli.main import main; import resource, hmd.daemon.service;"
        "import os; used = max(map(int, os.listdir('/proc/self/fd')));"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, used + 3));"
        "sys.exit(main(['run', '--once', '--config', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == Exit.RETRY, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("again in 0 s") == 1
