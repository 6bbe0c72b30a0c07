# SPDX-License-Identifier: MIT
"""``hmd report`` and ``hmd explain --slow`` on the answers that a daemon with a history gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import HmdError
from hmd.cli.main import main
from hmd.control.requests import ControlRequest
from hmd.control.status_socket import StatusSocket
from hmd.metrics.history import EVENT, EVENTS, MINUTES, History, explain_slow, report
from tests.unit.metrics.test_history import GIB, START_S, STEADY, rows

Answer = Callable[[ControlRequest], bytes]


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """Two hours: in the second one db is demoted, and batch is in a dry run."""
    history = History(tmp_path / "history.hmd", write=True)
    slower = {**STEADY, "accesses0": 3e8, "accesses1": 3e8, "resident0": 60 * 2 * GIB}
    for minute in range(120):
        at_s = START_S + 60 * minute
        sums = {**slower, "demoted_bytes": GIB / 30, "lost_s": 0.5} if minute >= 60 else STEADY
        history.append(MINUTES, rows(at_s, **sums))
        dry = {"dry_seconds": 60.0, "dry_promoted_bytes": GIB, "dry_saved_s": 3.0}
        history.append(MINUTES, rows(at_s, "batch", **dry))
        moved = {**dry, "demoted_bytes": sums.get("demoted_bytes", 0.0), "failed_busy": 1.0}
        whole = {"cpu_s": 0.6, "memory": 60 * 100 * 2.0**20, "lost_s": sums.get("lost_s", 0.0)}
        history.append(MINUTES, rows(at_s, "", **moved, **whole))
    event = np.zeros(1, EVENT)
    event["text"], event["start_s"], event["end_s"] = b"hmd drain: node 1", START_S + 4000, np.inf
    history.append(EVENTS, event)

    def answer(asked: ControlRequest) -> bytes:
        found: dict[str, Any]
        since_s = START_S + 7200 - asked.arguments["since_s"]
        if "before_s" in asked.arguments:
            before_s, target = asked.arguments["before_s"], asked.arguments["target"]
            found = explain_slow(history, target, since_s, START_S + 7200, before_s)
        else:
            found = report(history, since_s, START_S + 7200)
        return json.dumps(found).encode()

    path = tmp_path / "hmd.sock"
    server = StatusSocket(path, {"report": answer})
    yield path
    server.close()
    history.close()


def test_report_prints_moves_costs_dry_run_and_requests(
    socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--socket", str(socket)]) == 0
    printed = capsys.readouterr().out
    for part in (
        "1 h recorded",
        "50.0 %",
        "120 ns",
        "batch: in 1 h of dry run hmd would have moved 60.0 GiB up, 0 B down, and saved 180 s of"
        " waiting (5.00% of the time)",
        "all targets: in 1 h of dry run hmd would have moved 60.0 GiB up, 0 B down, and",
        "moves saved 0 s of waiting for memory, and cost 30 s for pages that made room",
        "not worth it",
        "hmd took 1.00% of a CPU and 100.0 MiB",
        "pages that could not be moved: busy 60",
        "uid 0: hmd drain: node 1",
    ):
        assert part in printed
    assert main(["report", "db", "--since", "2h", "--json", "--socket", str(socket)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["targets"]) == ["db"]
    assert found["version"] == 1
    assert found["targets"]["db"]["seconds"] == 7200


def test_report_of_unknown_target_ends_with_code_5(socket: Path) -> None:
    assert main(["report", "nobody", "--socket", str(socket)]) == 5


def test_slow_prints_comparison_and_reasons(
    socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "--slow", "db", "--before", "1h", "--socket", str(socket)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for part in ("4.0 GiB", "2.0 GiB", "100.0 %", "hmd demoted 2048 MiB more", "hmd drain: node 1"):
        assert part in printed
    assert "moved nothing" not in printed
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"][0]["effect"] > 0.1
    words[2] = "batch"
    assert main(words) == 0
    assert "hmd moved nothing of it in this time." in capsys.readouterr().out
    words[2] = "nobody"
    assert main(words) == 5


def test_report_of_damaged_file_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.hmd"
    file.write_bytes(b"other")
    assert main(["report", "--file", str(file)]) == HmdError.exit_code
    assert f"{file}: damaged" in capsys.readouterr().err
