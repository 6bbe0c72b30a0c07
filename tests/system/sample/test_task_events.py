# SPDX-License-Identifier: MIT
"""Forks and names that the kernel records, on the host."""

from __future__ import annotations

import subprocess
import threading

import pytest

from hmd.sample.perf_events import Forked, Named, TaskEvents, parse_records

pytestmark = pytest.mark.root


def test_task_events_of_forks_and_execs_are_in_time_order() -> None:
    events = TaskEvents()
    with subprocess.Popen(["sh", "-c", "/bin/true & wait"]) as process:
        process.wait(20)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    records = events.read()
    assert [r.time_ns for r in records] == sorted(r.time_ns for r in records)
    shell = process.pid
    (child,) = [r.pid for r in records if isinstance(r, Forked) and r.parent_pid == shell]
    assert [r.name for r in records if isinstance(r, Named) and r.pid == shell] == ["sh"]
    assert [r.name for r in records if isinstance(r, Named) and r.pid == child] == ["true"]
    assert thread.native_id not in {r.pid for r in records}
    assert shell not in {r.pid for r in events.read()}
    events.close()
    events.close()
    assert events.read() == []


def test_task_events_skip_other_records() -> None:
    lost = (2).to_bytes(4, "little") + bytes(2) + (24).to_bytes(2, "little") + bytes(16)
    assert parse_records(lost * 3) == []
