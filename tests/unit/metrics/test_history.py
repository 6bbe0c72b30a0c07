# SPDX-License-Identifier: MIT
"""The history on disk: what is written, what survives, what a report and a comparison say."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import HmdError
from hmd.metrics.history import (
    DAYS,
    EVENTS,
    FILE_BYTES,
    HEADER,
    HOURS,
    MINUTES,
    ROW,
    ROW_BYTES,
    History,
    HistoryRecorder,
    Rows,
    explain_slow,
    report,
    rows_between,
)
from hmd.metrics.observer import Observer
from hmd.metrics.status import ControlStatus
from hmd.metrics.tick_record import TickRecord
from tests.unit.metrics.test_observer import PAGE, places

START_S = 1_000_000 * 86400.0
LOG = logging.getLogger("test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.hmd"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    opened = History(path, write=True)
    yield opened
    opened.close()


def rows(start_s: float, name: str = "db", /, **sums: float) -> Rows:
    period_s = 60.0
    made = np.zeros(1, ROW)
    made["name"], made["start_s"], made["end_s"] = name.encode(), start_s, start_s + period_s
    made["seconds"] = period_s
    for column, value in sums.items():
        made[column] = value
    return made


class Clock:
    now_s = START_S

    def __call__(self) -> float:
        return self.now_s


def test_report_has_what_the_status_counted(
    tmp_path: Path, observer: Observer, tick: TickRecord
) -> None:
    clock = Clock()
    recorder = HistoryRecorder(tmp_path, LOG, clock)
    for second in range(1, 181):
        clock.now_s += 1.0
        status = observer.observe(tick, places())
        status = replace(status, uptime_s=float(second), control=ControlStatus(paused=second > 120))
        recorder.record(status)
    assert recorder.history is not None
    found = report(recorder.history, START_S, clock.now_s + 1)
    redis, batch = found["targets"]["redis"], found["targets"]["batch"]
    assert redis["promoted_bytes"] == status.targets[0].promoted_bytes == 180 * 512 * PAGE
    assert batch["demoted_bytes"] == 180 * PAGE
    assert redis["resident_bytes"][:2] == [100 * PAGE, 50 * PAGE]
    assert redis["processes"] == 1
    assert redis["accesses_per_s"] == pytest.approx(40)
    assert redis["fast_share"] == 0.75
    assert redis["saved_s"] == pytest.approx(status.targets[0].saved_s)
    whole = found["whole"]
    assert whole["seconds"] == 180
    assert whole["promoted_bytes"] == status.moves.promoted_bytes
    assert whole["failures"] == {"busy": 180}
    assert whole["paused_s"] == 60
    assert whole["memory_bytes"] == pytest.approx(status.resident_bytes, rel=0.5)
    # A daemon that begins again goes on: its counters start at 0.
    recorder.add_event("hmd pause: paused", 0)
    recorder.close(status)
    again = HistoryRecorder(tmp_path, LOG, clock)
    clock.now_s += 61
    again.record(replace(status, uptime_s=61.0))
    assert again.history is not None
    found = report(again.history, START_S, clock.now_s + 1)
    assert found["targets"]["redis"]["promoted_bytes"] == 2 * 180 * 512 * PAGE
    assert [(e["uid"], e["text"]) for e in found["events"]] == [(0, "hmd pause: paused")]
    again.close(status)


def test_row_with_a_damaged_byte_is_left_out(history: History, path: Path) -> None:
    for minute in range(5):
        history.append(MINUTES, rows(START_S + 60 * minute, promoted_bytes=1.0))
    place = MINUTES.first + 3  # the third row: numbers begin at 1
    for offset in range(0, ROW_BYTES, 7):
        with path.open("r+b") as file:
            file.seek(place * ROW_BYTES + offset)
            good = file.read(1)
            file.seek(place * ROW_BYTES + offset)
            file.write(bytes([good[0] ^ 0x10]))
        starts = history.rows(MINUTES, 0, np.inf)["start_s"] - START_S
        assert starts.tolist() == [0, 60, 180, 240]
        with path.open("r+b") as file:
            file.seek(place * ROW_BYTES + offset)
            file.write(good)
    assert len(history.rows(MINUTES, 0, np.inf)) == 5


@pytest.mark.parametrize("content", [b"x", HEADER.replace(b"1", b"2", 1).ljust(FILE_BYTES, b"\0")])
def test_file_of_another_kind_is_put_aside(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(HmdError, match="damaged, or of another version of hmd"):
        History(path)
    opened = History(path, write=True)
    assert "kept as history.hmd.old" in opened.problem
    assert path.with_name("history.hmd.old").read_bytes() == content
    assert path.stat().st_size == FILE_BYTES
    opened.close()


def test_second_writer_and_missing_folder_are_refused(history: History, path: Path) -> None:
    assert history.problem == ""
    with pytest.raises(HmdError, match="Resource temporarily unavailable"):
        History(path, write=True)
    recorder = HistoryRecorder(path.parent / "gone", LOG)
    assert recorder.history is None
    assert "gone/history.hmd: No such file" in recorder.problem
    assert "set state_dir" in HistoryRecorder(None, LOG).problem
    History(path).close()


def test_hours_and_days_are_summed_once(history: History, path: Path) -> None:
    for minute in range(26 * 60):
        history.append(MINUTES, rows(START_S + 60 * minute, promoted_bytes=1.0))
        if minute % 200 == 0:
            history.sum_periods(START_S + 60 * minute)
    history.sum_periods(START_S + 60 * 26 * 60)
    hours = history.rows(HOURS, 0, np.inf)
    assert hours["promoted_bytes"].tolist() == [60.0] * 26
    days = history.rows(DAYS, 0, np.inf)
    assert days["promoted_bytes"].tolist() == [24 * 60.0]
    assert days["seconds"].tolist() == [86400.0]
    # One report of the whole time takes no minute twice.
    assert rows_between(history, START_S, START_S + 1e6)["promoted_bytes"].sum() == 26 * 60
    reader = History(path)
    assert len(reader.rows(HOURS, 0, np.inf)) == 26
    reader.close()


def test_overwritten_minutes_are_taken_from_hours(history: History) -> None:
    """Ten targets for twenty hours: 12,000 rows of minutes in a ring of 8,192."""
    names = [f"t{number}" for number in range(10)]
    minutes = 20 * 60
    for minute in range(minutes):
        at_s = START_S + 60 * minute
        every = [rows(at_s, name, promoted_bytes=1.0) for name in names]
        history.append(MINUTES, np.concatenate(every))
        if minute % 60 == 0:
            history.sum_periods(at_s)
    assert history.rows(MINUTES, 0, np.inf)["start_s"].min() > START_S + 6 * 3600
    found = report(history, START_S, START_S + 60 * minutes)
    assert {t["promoted_bytes"] for t in found["targets"].values()} == {float(minutes)}
    assert {t["seconds"] for t in found["targets"].values()} == {60.0 * minutes}
    last = report(history, START_S + 60 * (minutes - 10), START_S + 60 * minutes)
    assert last["targets"]["t3"]["promoted_bytes"] == 10


WRITER = """
import sys, itertools
sys.path.insert(0, ".")
from pathlib import Path
from hmd.metrics.history import EVENTS, HOURS, MINUTES, History
from tests.unit.metrics.test_history import START_S, rows
history = History(Path(sys.argv[1]), write=True)
print("open", flush=True)
for minute in itertools.count():
    history.append(MINUTES, rows(START_S + 60 * minute, promoted_bytes=float(minute)))
    history.sum_periods(START_S + 60 * minute)
"""


def test_history_survives_kill_at_any_time(path: Path) -> None:
    """Each start finds whole rows without a gap, and goes on after the last."""
    last = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(random.uniform(0.0, 0.2))
            os.kill(writer.pid, signal.SIGKILL)
        opened = History(path, write=True)
        serials = opened.rows(MINUTES, 0, np.inf)["serial"].tolist()
        assert serials == list(range(1, len(serials) + 1))
        assert len(serials) >= last
        last = len(serials)
        opened.close()
    assert last > 0


def compared(
    history: History, before: dict[str, float], after: dict[str, float], **others: float
) -> dict[str, object]:
    for minute in range(120):
        sums = after if minute >= 60 else before
        at_s = START_S + 60 * minute
        history.append(MINUTES, rows(at_s, **sums))
        history.append(MINUTES, rows(at_s, "", overhead_s=0.0))
        if others:
            history.append(MINUTES, rows(at_s, "other", resident0=60 * others[f"h{minute // 60}"]))
    return explain_slow(history, "db", START_S + 3600, START_S + 7200, 3600)


GIB = float(1 << 30)
STEADY = {
    "accesses0": 6e8,
    "accesses1": 0.0,
    "resident0": 60 * 4 * GIB,
    "measured_loads": 100.0,
    "measured_s": 100 * 120e-9,
}


def texts(found: dict[str, object]) -> list[str]:
    reasons = found["reasons"]
    assert isinstance(reasons, list)
    return [str(reason["text"]) for reason in reasons]


def test_slow_after_demotions_names_them_and_who_gained(history: History) -> None:
    after = {
        **STEADY,
        "accesses0": 3e8,
        "accesses1": 3e8,
        "resident0": 60 * 2 * GIB,
        "resident1": 60 * 2 * GIB,
        "demoted_bytes": GIB / 30,
    }
    found = compared(history, STEADY, after, h0=1 * GIB, h1=3 * GIB)
    assert "50.0% of its accesses less are served by the fastest tier" in texts(found)[0]
    assert "hmd demoted 2048 MiB more than it promoted" in texts(found)[0]
    assert found["gained_fast_bytes"] == {"other": 2 * GIB}
    assert found["moved_bytes"] == 2 * GIB


def test_slow_without_moves_says_that_hmd_moved_nothing(history: History) -> None:
    found = compared(history, STEADY, {**STEADY, "accesses0": 1e8})
    assert found["moved_bytes"] == 0
    assert texts(found) == [
        "it accesses memory less often: it has less work, or waits for something else (CPU, locks,"
        " disk, network)"
    ]


def test_slow_after_growth_latency_and_more_work(history: History) -> None:
    grown = {**STEADY, "accesses0": 6e8, "accesses1": 4e8, "resident1": 60 * 2 * GIB}
    found = compared(history, STEADY, {**grown, "measured_s": 100 * 250e-9})
    all_texts = " | ".join(texts(found))
    assert "its memory has grown by 2048 MiB" in all_texts
    assert "a sampled load waits 250 ns instead of 120 ns" in all_texts
    assert "it accesses memory 1.7 times as often" in all_texts
    effects = [reason["effect"] for reason in found["reasons"]]  # type: ignore[attr-defined]
    assert effects == sorted(effects, reverse=True)


def test_slow_when_nothing_changed_names_no_reason_but_events(tmp_path: Path) -> None:
    clock = Clock()
    recorder = HistoryRecorder(tmp_path, LOG, clock)
    assert recorder.history is not None
    clock.now_s = START_S + 100
    recorder.add_event("long ago", 0)
    clock.now_s = START_S + 3500
    recorder.add_event("hmd drain: draining node 1", 0)
    found = compared(recorder.history, STEADY, STEADY)
    assert texts(found) == []
    assert [e["text"] for e in found["events"]] == [  # type: ignore[attr-defined]
        "hmd drain: draining node 1"
    ]
    empty = explain_slow(recorder.history, "nobody", START_S, START_S + 60, 60)
    assert (empty["before"], empty["after"], empty["reasons"]) == (None, None, [])
    assert len(recorder.history.rows(EVENTS, 0, np.inf)) == 2
