# SPDX-License-Identifier: MIT
"""``hmd status``, ``hmd top`` and ``hmd heatmap`` with a real socket and known answers."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hmd import __version__
from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.cli.output import format_bytes, format_count, format_share, print_table
from hmd.cli.status_command import process_table, profile_state, summary
from hmd.cli.top_command import rates_between
from hmd.control.status_socket import StatusSocket
from hmd.metrics.heat_map import grid, pids
from hmd.metrics.status import TickWatch
from tests.fakes.terminal import terminal

ROW = {
    "resident_bytes": [3 << 30, 1 << 30],
    "fast_share": 0.931,
    "samples": 10,
    "accesses": [9.0, 1.0, 0.0],
    "promoted_bytes": 2 << 20,
    "demoted_bytes": 1 << 20,
    "failed_pages": 12345,
}
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "pid": 77,
    "started_s": 1.7e9,
    "uptime_s": 3725.0,
    "config_file": "/etc/hmd/hmd.yaml",
    "dry_run": False,
    "policy": "histogram",
    "tick_s": 1.0,
    "ticks": 3725,
    "stage_failures": {},
    "cpu_s": 37.25,
    "resident_bytes": 170 << 20,
    "reload": {"successful": True, "success_s": 1.7e9, "error": ""},
    "sampler": {
        "name": "pmu",
        "period": 1009,
        "samples": 1234567,
        "lost": 3,
        "dropped": 0,
        "throttled": 0,
    },
    "tiers": [[0], [1, 2]],
    "moves": {
        "planned_pages": 1,
        "promoted_bytes": 5 << 30,
        "demoted_bytes": 4 << 30,
        "failed_pages": 30,
        "deferred_pages": 0,
        "would_move_pages": 0,
        "calls": 9,
        "failures": {"busy": 10, "no_memory": 20},
        "flows": [],
    },
    "targets": [{"name": "redis", "process_count": 1, **ROW}],
    "processes": [{"pid": 101, "start_ticks": 5, "name": "[bold]redis", "target": "redis", **ROW}],
}
HEATMAP = {
    "tiers": 2,
    "moments": [
        {
            "now_s": 10.0 + i,
            "processes": [
                {
                    "pid": 101,
                    "start_ticks": 5,
                    "target": "redis",
                    "bin_bytes": 2 << 20,
                    "bin": [100, 101, 500],
                    "heat": [float(i), 5.0, 0.0],
                    "pages": [[512, 0], [0, 512], [0, 0]],
                }
            ],
        }
        for i in range(4)
    ],
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    server = StatusSocket(
        tmp_path / "s",
        {
            "status": lambda _: json.dumps(STATUS).encode(),
            "heatmap": lambda _: json.dumps(HEATMAP).encode(),
        },
    )
    yield server.path
    server.close()


@pytest.mark.parametrize(
    ("watch_s", "code", "said"), [(2.0, 0, "last tick 2.0 s"), (99.0, 1, "last tick 99.0 s")]
)
def test_status_check_of_hung_tick_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], watch_s: float, code: int, said: str
) -> None:
    now_s = [0.0]
    watch = TickWatch(lambda: now_s[0])
    watch.record_tick(1.0)
    now_s[0] = watch_s
    answers = {"health": lambda _: json.dumps(watch.health()._asdict()).encode()}
    server = StatusSocket(tmp_path / "h", answers)
    assert main(["status", "--check", "--socket", str(server.path)]) == code
    assert capsys.readouterr().out.startswith(said)
    assert main(["status", "--check", "--json", "--socket", str(server.path)]) == code
    health = json.loads(capsys.readouterr().out)
    assert health["text"].startswith(said)
    assert health["healthy"] is (code == 0)
    server.close()


@pytest.mark.parametrize(("uid", "noted"), [(0, False), (1000, True)])
def test_status_of_hidden_processes_says_so_to_users(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    noted: bool,
) -> None:
    document = {**STATUS, "processes": []}
    count = sum(target["process_count"] for target in STATUS["targets"])
    server = StatusSocket(tmp_path / "s", {"status": lambda _: json.dumps(document).encode()})
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert main(["status", "--socket", str(server.path)]) == 0
    server.close()
    line = f"{count} more processes; those of other users are shown to root only"
    assert (line in capsys.readouterr().out) == noted


def test_status_table_shows_summary_and_processes(
    daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--socket", str(daemon)]) == 0
    text = capsys.readouterr().out
    assert "up 1:02:05, 3 725 ticks of 1 s, policy histogram, /etc/hmd/hmd.yaml" in text
    assert "1 234 567 samples, 3 lost; daemon: 1.0 % of a CPU, 170.0 MiB" in text
    assert "moved 5.0 GiB up, 4.0 GiB down, 30 pages failed (no room 20, busy 10)" in text
    assert "tier 1 (node 1,2)" in text
    process = next(line for line in text.splitlines() if "[bold]redis" in line)
    assert process.split() == [
        *("[bold]redis", "101", "3.0", "GiB", "1.0", "GiB", "93.1", "%"),
        *("2.0", "MiB", "1.0", "MiB", "12", "345"),
    ]


def test_table_control_characters_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("evil\x1b]0;title\x07\x9b2J\r\n",)])
    printed = capsys.readouterr().out
    assert "evil\ufffd]0;title\ufffd\ufffd2J" in printed
    assert not set(printed) & set("\x1b\x07\x9b\r")


def test_status_json_equals_answer_of_socket(
    daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json", "--socket", str(daemon)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown.pop("schema"), shown.pop("made_by")["hmd"]) == (1, __version__)
    assert shown == STATUS


def test_summary_problems_listed() -> None:
    status = deepcopy(STATUS)
    status["tiers"], status["sampler"]["name"], status["dry_run"] = [[0]], "faults", True
    status["reload"] = {"successful": False, "success_s": 0, "error": "f:1: wrong"}
    text = "\n".join(summary(status))
    for part in ("dry run", "one memory tier", "no PMU", "last reload failed", "f:1: wrong"):
        assert part in text


def test_summary_says_what_is_paged_out_and_what_stops_it() -> None:
    far = {"out_bytes": 3 << 30, "ahead_bytes": 1 << 20, "held_processes": 2, "stopped": ""}
    assert any(line.startswith("paged out 3") for line in summary({**STATUS, "far": far}))
    stopped = "swap on /dev/nbd0 fails: the device is gone"
    lines = summary({**STATUS, "far": {**far, "stopped": stopped}})
    assert f"page-out is stopped: {stopped} (hmd doctor)" in lines
    assert not any("paged out" in line for line in summary(STATUS))


def test_summary_of_dry_run_names_planned_moves_and_saving() -> None:
    status = deepcopy(STATUS)
    would = {"seconds": 7200.0, "promoted_bytes": 3 << 30, "demoted_bytes": 2 << 30}
    status["targets"][0] |= {"dry_run": True, "would": {**would, "saved_s": 50.0, "lost_s": 2.0}}
    flow = {"target": "redis", "from_node": 1, "to_node": 0, "planned_pages": 512, "heat": 12.3}
    status["rounds"] = [{"dry_run": True, "flows": [flow]}, {"dry_run": False, "flows": []}]
    text = "\n".join(summary(status))
    assert (
        "dry run of redis for 2:00:00: would have moved 3.0 GiB up, 2.0 GiB down, and saved 48 s of"
        " waiting for memory (24 s per hour)" in text
    )
    assert "planned now: redis 2.0 MiB from node 1 to node 0, 12.3 accesses" in text
    assert "all of them" not in text
    other = deepcopy(status["targets"][0]) | {"name": "db"}
    other["would"] |= {"seconds": 3600.0, "saved_s": 12.0}
    status["targets"].append(other)
    assert (
        "dry run of all of them for 2:00:00: would have moved 6.0 GiB up, 4.0 GiB down, and saved"
        " 58 s of waiting for memory (29 s per hour)" in "\n".join(summary(status))
    )
    for target in status["targets"]:
        target["dry_run"] = False
    assert "planned now" not in "\n".join(summary(status))


def test_top_once_prints_table_or_json(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-n", "1", "--socket", str(daemon)]) == 0
    assert "[bold]redis" in capsys.readouterr().out
    assert main(["top", "-n", "1", "--json", "--socket", str(daemon)]) == 0
    assert json.loads(capsys.readouterr().out)["rates"] == {}


def test_top_into_a_pipe_prints_a_table_per_interval(daemon: Path) -> None:
    command = [sys.executable, "-m", "hmd", "top", "--interval", "0.1", "--socket", str(daemon)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    seen = b""
    try:
        while seen.count(b"fast share") < 3:
            ready, _, _ = select.select([process.stdout], [], [], 20)
            assert ready, "hmd top prints nothing into a pipe"
            part = os.read(process.stdout.fileno(), 65536)
            assert part, "hmd top ended"
            seen += part
    finally:
        process.kill()
        process.communicate()
    # Sums since the start at first, rates from then on.
    headings = [line for line in seen.splitlines() if b"fast share" in line]
    assert b"moved up" in headings[0]
    assert b"up/s" in headings[1]


@pytest.mark.parametrize("columns", ["60", "80", "100", "200"])
@pytest.mark.parametrize("tiers", [2, 4])
def test_status_keeps_its_figures(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    tiers: int,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    status = deepcopy(STATUS)
    status["tiers"] = [[node] for node in range(tiers)]
    sizes = [(1023 << 30) + (i << 29) for i in range(tiers)]
    for row in (*status["targets"], *status["processes"]):
        row["resident_bytes"] = sizes
    server = StatusSocket(tmp_path / "s", {"status": lambda _: json.dumps(status).encode()})
    assert main(["status", "--socket", str(server.path)]) == Exit.OK
    server.close()
    text = capsys.readouterr().out
    assert "…" not in text
    if int(columns) >= 40 * tiers:  # on a narrower terminal, lines are longer rather than cut
        assert all(len(line) <= int(columns) for line in text.splitlines())
    for figure in (*map(format_bytes, sizes), "93.1 %", "12 345", "101", "2.0 MiB"):
        assert figure in text


def test_rates_between_two_states_per_second() -> None:
    after = deepcopy(STATUS)
    after["uptime_s"] += 2
    after["processes"][0]["promoted_bytes"] += 100
    after["targets"][0]["demoted_bytes"] += 50
    assert rates_between(STATUS, after) == {"redis": (0, 25), "101:5": (50, 0)}
    assert rates_between(STATUS, STATUS) == {}
    restarted = {**after, "pid": 78}
    assert rates_between(STATUS, restarted) == {}


def test_rates_new_process_counted_from_zero() -> None:
    before = {**STATUS, "processes": []}
    after = {**STATUS, "uptime_s": STATUS["uptime_s"] + 1}
    assert rates_between(before, after)["101:5"] == (2 << 20, 1 << 20)


def test_top_on_terminal_ends_with_q(daemon: Path) -> None:
    with terminal("top", "--interval", "0.1", "--socket", str(daemon)) as shown:
        shown.wait_for(b"redis")
        shown.press("q")
        assert shown.end() == (0, b"")


def test_heatmap_picture_written(
    daemon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map.png"
    assert main(["heatmap", "--socket", str(daemon), "-o", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {file}\n"


def test_heatmap_without_picture_is_text(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heatmap", "--socket", str(daemon)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["3e800000", "ca00000", "c800000"]
    assert lines[1].rstrip().endswith("@")
    assert lines[-1].split(", ")[-1] == "@: 5"


def test_heatmap_unknown_pid_error_lists_pids(
    daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["heatmap", "--pid", "5", "--socket", str(daemon), "-o", "/tmp/never.png"])
    assert code == Exit.TARGET
    assert "it has those of: 101" in capsys.readouterr().err


def test_heatmap_json_of_pid_has_that_process_alone(
    daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["heatmap", "--json", "--socket", str(daemon), "--pid"]
    assert main([*words, "101"]) == Exit.OK
    assert pids(json.loads(capsys.readouterr().out)) == [101]
    assert main([*words, "5"]) == Exit.TARGET
    assert "it has those of: 101" in capsys.readouterr().err


def test_heatmap_unwritable_path_reported(
    daemon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no/map.png"
    assert main(["heatmap", "--socket", str(daemon), "-o", str(file)]) == Exit.MISSING
    assert f"cannot write {file}: No such file" in capsys.readouterr().err


def test_heatmap_grid_rows_and_columns() -> None:
    seen = grid(HEATMAP, 101)
    assert seen.address.tolist() == [100 << 21, 101 << 21, 500 << 21]
    assert seen.seconds.tolist() == [0, 1, 2, 3]
    assert seen.heat[:, 3].tolist() == [3, 5, 0]
    assert seen.fast[:2, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB"),
     (5 << 40, "5.0 TiB"), (5 << 50, "5120.0 TiB")],
)  # fmt: skip
def test_format_bytes_each_unit(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


def test_format_count_and_share() -> None:
    assert format_count(1234567) == "1 234 567"
    assert format_share(0.5) == "50.0 %"
    assert format_count(None) == format_share(None) == "-"


def test_top_on_a_dumb_terminal_prints_lines(daemon: Path) -> None:
    """A screen that is drawn over and over shows nothing there."""
    with terminal("top", "--interval", "0.1", "--socket", str(daemon), term="dumb") as shown:
        shown.wait_for(b"fast share", 2)
    assert b"\x1b" not in shown.seen


@pytest.mark.parametrize(("known", "shown"), [(0.18, "GiB (18% known)"), (0.99, "GiB")])
def test_memory_that_is_not_known_page_by_page_is_marked(known: float, shown: str) -> None:
    now = deepcopy(STATUS)
    now["targets"][0]["known"] = known
    screen = Console(width=200)
    with screen.capture() as printed:
        screen.print(process_table(now))
    row = next(line for line in printed.get().splitlines() if line.startswith("redis"))
    assert (shown in row, "known" in row) == (True, known < 0.95)


def test_status_says_why_a_target_is_empty_and_what_is_compiled() -> None:
    now = deepcopy(STATUS)
    now["targets"][0]["empty_reason"] = "no process has exe 'x'"
    now["compiling"] = True
    name = now["targets"][0]["name"]
    lines = summary(now)
    assert f"target {name}: no process has exe 'x'" in lines
    assert "compiling kernels, for about a minute: no process is followed until then" in lines


def test_status_names_rates_of_tiers_where_there_are_any() -> None:
    line = "most that moves into and out of tiers, 0: 1.0 GiB/s, 1: 200.0 MiB/s"
    assert line in summary({**STATUS, "tier_rates": [1 << 30, 200 << 20]})
    assert not [each for each in summary(STATUS) if "out of tiers" in each]


def test_profiles_are_named_once_there_are_any_or_none_can_be_read() -> None:
    known = {"count": 3, "bytes": 9000, "processes": 2, "refused": 0, "stopped": ""}
    (line,) = profile_state(known)
    assert line == "programs known from former runs: 3; processes that run one: 2"
    (line,) = profile_state({**known, "refused": 1})
    assert line.endswith(", 1 refused (see the log)")
    (line,) = profile_state({**known, "saved_s": -1.5})
    assert line.endswith("; moves by profiles cost 1.5 s")
    (line,) = profile_state({**known, "stopped": "it does not answer"})
    assert line == "nothing is learned of programs: it does not answer"
    assert not profile_state({**known, "count": 0})
    assert not profile_state({})
