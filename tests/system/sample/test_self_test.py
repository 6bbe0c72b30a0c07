# SPDX-License-Identifier: MIT
"""The self-test on the kernel's own events, and where the machine does not permit a test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hmd.base.errors import UnavailableError
from hmd.sample.page_faults import open_faults
from hmd.sample.pmu import open_pmu
from hmd.sample.sampler import SamplerStats, SampleSettings
from hmd.sample.selection import open_sampler
from hmd.sample.self_test import prove
from tests.fakes.software_pmu import CLOCK, FAULTS, MINOR_FAULTS, SoftwarePmu


def test_page_faults_pass_the_self_test() -> None:
    sampler = open_faults(SampleSettings(period=7))
    assert prove(sampler) == "tested: 256 of 256 page faults"
    assert sampler.stats == SamplerStats()  # no program's samples, and none of theirs was lost
    assert (sampler.period, len(sampler.read())) == (7, 0)
    sampler.close()


@pytest.mark.parametrize(
    ("loads", "problem"),
    [
        (FAULTS, "memory that was loaded|no sample of [0-9,]+ loads"),
        (CLOCK, "samples have no address|throttled"),
    ],
)
def test_counters_of_something_else_fail_the_self_test(
    loads: str, problem: str, software_pmu: SoftwarePmu
) -> None:
    """Real events that open and have a ring, but are no loads."""
    software_pmu.device(mem_loads=loads, mem_stores=MINOR_FAULTS)
    sampler = open_pmu(SampleSettings(loads="latency"), software_pmu.proc, software_pmu.sysfs)
    with pytest.raises(UnavailableError, match=problem):
        prove(sampler)
    sampler.close()


def test_auto_takes_the_next_sampler_where_one_fails_and_says_why(
    software_pmu: SoftwarePmu,
) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    cpuinfo = (software_pmu.proc / "cpuinfo").read_text()
    proc = software_pmu.proc.parent / "whole proc"
    proc.mkdir()
    (proc / "cpuinfo").write_text(cpuinfo)
    chosen = open_in_own_proc(proc, software_pmu.sysfs)
    assert chosen.startswith("faults sampling page faults on ")
    assert "tested: 256 of 256 page faults" in chosen
    assert " CPUs failed the self-test: " in chosen


OPEN = """
import pathlib, subprocess, sys
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler
proc = pathlib.Path(sys.argv[1]) / "proc"
subprocess.run(["mount", "--bind", f"{sys.argv[1]}/cpuinfo", "/proc/cpuinfo"], check=True)
settings = SampleSettings(loads="latency")
chosen = open_sampler(settings, pathlib.Path("/proc"), pathlib.Path(sys.argv[2]))
print(chosen.sampler.name, chosen.reason)
chosen.sampler.close()
"""


def open_in_own_proc(proc: Path, sysfs: Path) -> str:
    """Return what auto selects where /proc is the real one but for its cpuinfo."""
    command = ["unshare", "--mount", sys.executable, "-c", OPEN, str(proc), str(sysfs)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_limited(setup: str) -> str:
    program = f"""
import os, resource
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler
from hmd.sample.page_faults import open_faults
from hmd.sample.self_test import Probe, prove
sampler = open_faults()
{setup}
print(prove(sampler))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (
            "os.setuid(65534); resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
            "not tested: no process could be started for it (Resource temporarily unavailable)",
        ),
        (
            "size = int(open('/proc/self/statm').read().split()[0]) * 4096 + (1 << 20)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (size, size))",
            "not tested: no memory for it (Cannot allocate memory)",
        ),
    ],
)
def test_self_test_that_is_not_permitted_is_left_out_and_named(setup: str, said: str) -> None:
    assert run_limited(setup) == said


def test_configured_sampler_that_fails_is_taken_and_called_doubtful(
    software_pmu: SoftwarePmu, monkeypatch: pytest.MonkeyPatch
) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    monkeypatch.setattr("hmd.sample.selection.prove", lambda sampler, _: prove(sampler))
    settings = SampleSettings(sampler="pmu", loads="latency")
    chosen = open_sampler(settings, software_pmu.proc, software_pmu.sysfs)
    chosen.sampler.close()
    assert "which is doubtful: " in chosen.reason
    assert chosen.reason.endswith("(as configured)")


def test_probe_ends_with_its_parent() -> None:
    program = """
import time
from hmd.sample.self_test import Probe
probe = Probe(1 << 20)
print(probe.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        probe = Path("/proc") / parent.stdout.readline().decode().strip()
        assert probe.exists()
        parent.send_signal(signal.SIGKILL)
    for _ in range(1000):
        if not probe.exists() or " Z" in (probe / "stat").read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{probe} goes on")
