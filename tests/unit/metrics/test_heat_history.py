# SPDX-License-Identifier: MIT
"""Heat snapshots as JSON, serialised once, and the answers to clients."""

import json

import numpy as np
import pytest

from hmd.base.errors import UsageError
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.heat_history import HeatHistory, HeatSnapshot, HeatSummary
from tests.unit.metrics.conftest import REDIS


def everything(_: ProcessId) -> bool:
    return True


def test_heat_snapshot_as_json_rounded_and_cached() -> None:
    summary = HeatSummary(
        REDIS,
        'a "b" c',
        2 << 20,
        np.array([2 << 21, 1 << 45], np.uint64),
        np.array([0.12345, 12345.0], np.float32),
        np.array([[512, 0], [1, 7]], np.int32),
    )
    moment = HeatSnapshot(1.23456, (summary, summary))
    text = moment.as_json(everything)
    own = {
        "pid": REDIS.pid,
        "start_ticks": REDIS.start_ticks,
        "target": 'a "b" c',
        "bin_bytes": 2 << 20,
        "bin": [2, 1 << 24],
        "heat": [0.123, 12300.0],
        "pages": [[512, 0], [1, 7]],
    }
    assert json.loads(text) == {"now_s": 1.235, "processes": [own, own]}
    assert moment.as_json(everything) == text
    assert moment.summaries == ()


def test_heat_snapshot_invisible_processes_left_out() -> None:
    empty = np.zeros(0)
    summaries = tuple(
        HeatSummary(process, "t", 1, empty.astype("u8"), empty.astype("f4"), empty.astype("i4"))
        for process in (REDIS, ProcessId(REDIS.pid + 1, 5))
    )
    moment = HeatSnapshot(1.0, summaries)
    for _ in range(2):
        sent = json.loads(moment.as_json(lambda process: process == REDIS))
        assert [process["pid"] for process in sent["processes"]] == [REDIS.pid]
    assert json.loads(moment.as_json(lambda _: False))["processes"] == []
    assert len(json.loads(moment.as_json(everything))["processes"]) == 2


def test_heat_snapshot_without_processes_empty_list() -> None:
    assert json.loads(HeatSnapshot(1.0, ()).as_json(everything)) == {"now_s": 1.0, "processes": []}


def test_heat_history_after_s_given_only_later_snapshots_sent(topology: Topology) -> None:
    heat_map = HeatHistory(topology)
    assert json.loads(heat_map.answer({"after_s": 1.0}))["moments"] == []
    heat_map._snapshots.extend(HeatSnapshot(at_s, ()) for at_s in (1.0004, 2.0, 3.0))

    def times_answered(arguments: dict[str, object]) -> list[float]:
        moments = json.loads(heat_map.answer(arguments))["moments"]
        return [moment["now_s"] for moment in moments]

    assert times_answered({}) == [1.0, 2.0, 3.0]
    assert times_answered({"after_s": 1.0}) == [2.0, 3.0]
    assert times_answered({"after_s": 2}) == [3.0]
    # The last is always sent: a client whose clock is ahead notices it.
    assert times_answered({"after_s": 100.0}) == [3.0]
    for wrong in ("1", None, True, [1.0]):
        with pytest.raises(UsageError, match="after_s is not a number"):
            heat_map.answer({"after_s": wrong})
