# SPDX-License-Identifier: MIT
"""Recording real programs with the kernel's page faults, which every machine has."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from hmd.base.errors import Exit, MissingError, TargetError
from hmd.base.units import PAGE_BYTES
from hmd.cli.main import main
from hmd.linux.procfs import identify
from hmd.linux.targets import TargetSpec
from hmd.linux.topology import Topology, read_topology
from hmd.sample.access_batch import Kind
from hmd.sample.sampler import SampleSettings
from hmd.trace.functions import heat_by_function
from hmd.trace.reader import read_trace
from hmd.trace.recorder import Recorder, RecordSettings, Sources
from hmd.trace.session import Launched, RecordRequest, describe, record_command, record_running
from hmd.trace.summary import summarise
from hmd.trace.trace import Trace
from hmd.trace.writer import TraceWriter
from tests.fakes.two_functions import MISSES, STAYS, compiled

TOUCH = """
import mmap, os, sys, time
m = mmap.mmap(-1, {pages} * 4096)
for i in range({pages}):
    m[i * 4096] = 1
print(flush=True)
time.sleep({seconds})
"""


def request(path: Path, **more: object) -> RecordRequest:
    sample = SampleSettings(sampler="faults", period=1)
    return RecordRequest(path, sample=sample, settings=RecordSettings(interval_s=0.05), **more)  # type: ignore[arg-type]


def of_pids(*pids: int) -> TargetSpec:
    return TargetSpec("recorded", pids=pids)


def touch(pages: int, seconds: float = 0.3) -> list[str]:
    return [sys.executable, "-S", "-c", TOUCH.format(pages=pages, seconds=seconds)]


def touched_run(trace: Trace) -> int:
    """Return the length of the longest run of neighbouring sampled pages."""
    page = np.unique(trace.samples.address // np.uint64(PAGE_BYTES))
    breaks = np.flatnonzero(np.diff(page) != 1)
    return int(np.diff(np.concatenate([[-1], breaks, [len(page) - 1]])).max())


@pytest.mark.alone
def test_record_command_saves_accesses_mappings_and_placement(tmp_path: Path) -> None:
    recorded = record_command(request(tmp_path / "t"), touch(500))
    trace = read_trace(tmp_path / "t")
    assert recorded.exit_code == 0
    assert recorded.samples == len(trace.samples) > 500
    assert touched_run(trace) >= 500
    assert (trace.samples.kind == Kind.FAULT).all()
    assert (trace.samples.thread != 0).all()
    assert np.all(np.diff(trace.samples.time_ns.astype(np.int64)) >= 0)
    assert trace.ending is not None
    assert 0.3e9 < trace.runtime_ns < 60e9
    end_ns = trace.begin_ns + trace.runtime_ns
    assert trace.begin_ns <= trace.samples.time_ns[0] <= trace.samples.time_ns[-1]
    assert trace.samples.time_ns[-1] < end_ns + 1e9
    assert trace.mappings
    page = np.concatenate([change.by_page()[0] for change in trace.placement])
    assert len(page) >= 500
    # Pages that were there when it ended are not recorded as gone.
    assert sum(summarise(trace)["resident_pages"].values()) >= 500
    assert trace.progress is not None
    assert trace.progress.cpu_ns.max() > 1e6
    assert trace.clock == "monotonic"
    assert trace.ending.elapsed_ns == pytest.approx(trace.runtime_ns, abs=1e6)
    counted = trace.progress.instructions
    assert (counted > 0).all() == (trace.about["instructions"] == "pmu")
    assert trace.about["instructions_detail"]
    assert not trace.samples.instructions.any()
    assert [tier["nodes"] for tier in trace.about["tiers"]] == [[0]]


def test_recording_of_a_group_without_processes_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", "-o", str(tmp_path / "t"), "--sampler", "faults", "--seconds", "1"]
    assert main([*words, "--cgroup", "/hmd-of-no-process"]) == Exit.TARGET
    assert "no process has cgroup '/hmd-of-no-process'" in capsys.readouterr().err
    assert main([*words, "--json", "--", str(tmp_path)]) == Exit.NOT_PERMITTED
    assert f"cannot run {tmp_path}: Permission denied" in capsys.readouterr().err


LONG_ENOUGH = "20000"
"""Rounds after which mappings have been read, some 0.3 s."""


def test_recording_tells_the_functions_that_touched_memory(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    record_command(request(tmp_path / "t"), [str(program), "8", LONG_ENOUGH])
    found, _ = heat_by_function(read_trace(tmp_path / "t"))
    share = {each["function"]: each["share"] for each in found}
    assert next(iter(share)) == MISSES
    # 2048 pages against one; the rest is the start of the program and of libraries.
    assert share[MISSES] > 0.8
    assert share.get(STAYS, 0.0) < 0.01


def test_recording_says_that_code_runs_from_anonymous_memory(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    record_command(request(tmp_path / "t"), [str(program), "8", LONG_ENOUGH, "copied"])
    hottest = heat_by_function(read_trace(tmp_path / "t"))[0][0]
    assert (hottest["function"], hottest["offset"]) == (None, None)
    assert hottest["mapping"] == "anonymous memory, as of a JIT compiler"


def test_record_command_includes_children(tmp_path: Path) -> None:
    script = f'{" ".join(map(repr, touch(300)[:3]))} "$1" & wait; exit 3'
    recorded = record_command(
        request(tmp_path / "t"), ["sh", "-c", script, "sh", touch(300, 0.5)[3]]
    )
    trace = read_trace(tmp_path / "t")
    assert recorded.exit_code == 3
    assert len(trace.processes) == 2
    assert touched_run(trace) >= 300 or len(trace.placement) > 1


def test_short_lived_children_are_recorded_with_their_names(tmp_path: Path) -> None:
    """All end between two scans of /proc, each before the next one starts."""
    lives = touch(200, 0)
    script = f"for i in 1 2 3; do {lives[0]} -S -c '{lives[3]}'; done"
    wanted = replace(request(tmp_path / "t"), settings=RecordSettings(interval_s=2.0))
    recorded = record_command(wanted, ["sh", "-c", script])
    trace = read_trace(tmp_path / "t")
    assert recorded.processes == 4
    python = Path(sys.executable).resolve().name[:15]
    names = [process.name for process in trace.processes]
    assert names[0] == "sh"
    # A child that is read between its fork and its exec has its parent's name.
    execed = [name for name in names[1:] if name != "sh"]
    assert execed
    assert all(name in (python, Path(sys.executable).name) for name in execed)
    # Each child starts an interpreter and faults 200 pages in.
    counts = np.bincount(trace.samples.process, minlength=4)
    assert (counts[1:] >= (100 if recorded.lost else 500)).all(), counts


FORKS = """
import os, signal
for _ in range(400):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
signal.pause()
"""


def test_recorder_of_many_short_lived_processes_keeps_their_index_only(tmp_path: Path) -> None:
    sample = SampleSettings(sampler="faults", period=1)
    with contextlib.ExitStack() as opened:
        sources = opened.enter_context(Sources(sample))
        assert sources.tasks is not None
        child = opened.enter_context(
            contextlib.closing(Launched([sys.executable, "-S", "-c", FORKS], None))
        )
        process = identify(child.pid)
        assert process is not None
        about = describe(["forks"], read_topology(), sources, None)
        writer = opened.enter_context(TraceWriter(tmp_path / "t", about))
        recorder = Recorder(TargetSpec("recorded", pids=(process.pid,)), sources, writer)
        recorder.begin()
        child.release()
        deadline_s = time.monotonic() + 60
        while recorder.processes < 401 and time.monotonic() < deadline_s:
            recorder.poll()
        for _ in range(2):
            recorder.poll()
        found = recorder.processes, len(recorder._running), len(recorder._descendants._name)
        child.kill()
    assert found == (401, 1, 1)


def test_recorded_program_has_its_own_name(tmp_path: Path) -> None:
    """Not the name of hmd, of which it is a copy until its exec."""
    record_command(request(tmp_path / "t"), ["sleep", "0.3"])
    assert [process.name for process in read_trace(tmp_path / "t").processes] == ["sleep"]


def test_processes_that_end_within_an_interval_suggest_a_shorter_one(tmp_path: Path) -> None:
    words = ["record", "--sampler=faults", "--interval=1", "-o", str(tmp_path / "t"), "--"]
    script = "sleep 0.4; for i in 1 2 3 4 5 6 7 8; do /bin/true; done"
    done = hmd(*words, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "of 10 processes ended before their mappings were read" in done.stderr
    assert "take a shorter --interval (now 1 s)" in done.stderr


def test_record_running_process_ends_after_requested_time(tmp_path: Path) -> None:
    with subprocess.Popen(touch(100, 30), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        recorded = record_running(request(tmp_path / "t", seconds=0.3), of_pids(process.pid))
        assert time.monotonic() - began < 20
        assert process.poll() is None
        process.kill()
    assert recorded.exit_code is None
    trace = read_trace(tmp_path / "t")
    assert trace.processes[0].pid == process.pid
    assert len(np.concatenate([change.by_page()[0] for change in trace.placement])) >= 100


def test_record_of_several_pids_ends_with_the_last(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        running = [
            opened.enter_context(subprocess.Popen(touch(100, seconds), stdout=subprocess.PIPE))
            for seconds in (1.0, 2.0)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        pids = [process.pid for process in running]
        recorded = record_running(request(tmp_path / "t"), of_pids(*pids))
        assert [process.poll() for process in running] != [None, None]
    trace = read_trace(tmp_path / "t")
    assert recorded.exit_code is None
    assert [process.pid for process in trace.processes] == sorted(pids)
    assert {snapshot.process for snapshot in trace.mappings} == {0, 1}


def test_record_of_a_user_has_processes_that_begin_later_and_their_children(
    tmp_path: Path,
) -> None:
    """By the shortest-lived way: a process that another one of the user starts, and that ends."""
    script = f"sleep 2; exec {sys.executable} -S -c 'import time; time.sleep(30)'"
    with contextlib.ExitStack() as opened:
        user = {"user": 54321}
        first = opened.enter_context(subprocess.Popen(["sleep", "30"], **user))  # type: ignore[call-overload]
        later = opened.enter_context(subprocess.Popen(["sh", "-c", script], **user))  # type: ignore[call-overload]
        target = TargetSpec("recorded", user=54321)
        recorded = record_running(request(tmp_path / "t", seconds=4), target)
        for process in (first, later):
            process.kill()
    trace = read_trace(tmp_path / "t")
    pids = {process.pid for process in trace.processes}
    assert {first.pid, later.pid} < pids
    assert recorded.processes == len(pids) == 3
    assert trace.about["instructions"] is None


def test_record_of_the_whole_machine_reads_processes_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmd.trace.recorder.ALWAYS_READ", 1)
    monkeypatch.setattr("hmd.trace.recorder.READ_ALL_SHARE", 0.0)
    with contextlib.ExitStack() as opened:
        running = [opened.enter_context(subprocess.Popen(["sleep", "30"])) for _ in range(5)]
        target = TargetSpec("recorded")
        recorded = record_running(request(tmp_path / "t", seconds=1.0), target)
        for process in running:
            process.kill()
    trace = read_trace(tmp_path / "t")
    pids = [process.pid for process in trace.processes]
    assert {process.pid for process in running} < set(pids)
    # A poll reads one process: all are read once before any is read again.
    first = [snapshot.process for snapshot in trace.mappings][: len(pids) // 2]
    assert len(set(first)) == len(first)
    assert recorded.unread > 0
    assert recorded.unread + recorded.short_lived + len({m.process for m in trace.mappings}) == len(
        pids
    )


def test_record_of_nothing_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "--sampler=faults", "-o", str(tmp_path / "t")]
    assert main([*words, "--unit", "no-such-unit"]) == Exit.TARGET
    assert "nothing to record: no process has unit 'no-such-unit'" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
    for wrong in ([], ["--all", "--pid", "1"], ["--user", "root", "--", "true"]):
        assert main([*words, *wrong]) == Exit.USAGE
    assert main([*words, "--all", "--tier", "slow"]) == Exit.USAGE


def test_record_of_missing_command_or_process_raises(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot run"):
        record_command(request(tmp_path / "t"), ["/no/such"])
    with pytest.raises(TargetError, match="no process"):
        record_running(request(tmp_path / "t"), of_pids(2**22 - 1))


def test_record_on_tier_of_one_tier_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="one tier"):
        record_command(request(tmp_path / "t", tier="slow"), ["true"])


@pytest.mark.parametrize("randomize", [False, True])
def test_record_on_tier_fixes_addresses_unless_randomized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, randomize: bool
) -> None:
    (node, *_) = read_topology().nodes
    two_tiers = Topology((replace(node, tier=0), replace(node, tier=1)))
    monkeypatch.setattr("hmd.trace.session.read_topology", lambda: two_tiers)
    stacks = set()
    for name in "ab":
        script = f"grep stack /proc/self/maps > {tmp_path / name}"
        wanted = request(tmp_path / "t", tier="slow", randomize=randomize)
        assert record_command(wanted, ["sh", "-c", script]).exit_code == 0
        stacks.add((tmp_path / name).read_text())
    assert len(stacks) == (2 if randomize else 1)


def test_record_killed_leaves_a_salvageable_trace(tmp_path: Path) -> None:
    path = tmp_path / "t"
    words = ["record", "--sampler", "faults", "--interval", "0.05", "-o", str(path), "--"]
    with subprocess.Popen(
        [sys.executable, "-m", "hmd", *words, *touch(200, 30)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
    trace = read_trace(path, salvage=True)
    assert trace.ending is None
    assert trace.mappings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_stopped_by_signal_leaves_a_complete_trace(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "t"
    words = ["record", "--sampler", "faults", "--interval", "0.05", "-o", str(path), "--"]
    with subprocess.Popen(
        [sys.executable, "-m", "hmd", *words, *touch(200, 2)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == 0
    trace = read_trace(path)
    assert trace.ending is not None
    assert trace.ending.exit_code is None


def hmd(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hmd", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_record_and_trace_commands_run_end_to_end(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    program = ["sh", "-c", "exit 5"]
    done = hmd("record", "--sampler=faults", "--period=1", "--json", "-o", path, "--", *program)
    assert done.returncode == 5, done.stderr
    summary = json.loads(done.stderr)
    assert summary["samples"] > 0
    assert 0 < summary["runtime_s"] < 60
    assert 0 < summary["elapsed_s"] < 60
    file = tmp_path / "summary.json"
    words = ["--sampler=faults", f"--json={file}", "-o", str(tmp_path / "u"), "--", "true"]
    assert hmd("record", *words).stderr == ""
    assert json.loads(file.read_text()).keys() == summary.keys()
    info = json.loads(hmd("trace", "info", "--json", path).stdout)
    assert info["command"] == program
    assert info["pair_period"] is None
    assert "none: overlapping misses cannot be identified" in hmd("trace", "info", path).stdout
    assert "exit 5" in hmd("trace", "info", path).stdout
    for verb, name in (("export", "t.npz"), ("export", "t.parquet"), ("heatmap", "t.png")):
        assert hmd("trace", verb, path, "-o", str(tmp_path / name)).returncode == 0
        assert (tmp_path / name).stat().st_size > 500
    with np.load(tmp_path / "t.npz") as arrays:
        assert len(arrays["address"]) > 0
        table = parquet.read_table(tmp_path / "t.parquet")
        assert table.column("address").to_pylist() == arrays["address"].tolist()
    assert json.loads(table.schema.metadata[b"hmd"])["command"] == program
    for wrong, code in (
        (["trace", "info", __file__], 1),
        (["trace", "export", path, "-o", "x.csv"], 1),
        (["record", "-o", path], 2),
        (["record", "-o", path, "--pid", "1", "--tier", "slow"], 2),
        (["record", "-o", "/no/such/folder/t", "--", "true"], 4),
    ):
        refused = hmd(*wrong)
        assert refused.returncode == code, refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr


def test_record_without_samples_says_what_to_do(tmp_path: Path) -> None:
    done = hmd(
        *("record", "-o", str(tmp_path / "t"), "--sampler", "faults", "--period", "1000000"),
        *("--", "true"),
    )
    assert done.returncode == 0, done.stderr
    assert ", 0 samples" in done.stderr
    assert "there are no samples" in done.stderr
    assert "shorter --period" in done.stderr
