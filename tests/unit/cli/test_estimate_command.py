# SPDX-License-Identifier: MIT
"""hmd estimate: tables, JSON, notes and exit codes."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.estimate import model
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Ending, MappingSnapshot, PlacementChange, Trace, TracedProcess
from hmd.trace.writer import write_trace

PAGE = 4096
PAGES = 100
SAMPLES = 3000


def made(tier: str, latency_ns: int, runtime_ms: int, seed: int) -> Trace:
    """A run whose lower pages are hotter, in a heap of 40 pages and a file of 60."""
    rng = np.random.default_rng(seed)
    columns = {name: np.zeros(SAMPLES, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.sort(rng.integers(0, runtime_ms * 1_000_000, SAMPLES)).astype(np.uint64)
    page = np.minimum(rng.geometric(0.05, SAMPLES) - 1, PAGES - 1)
    columns["address"] = (page * PAGE).astype(np.uint64)
    columns["kind"][:] = Kind.LOAD
    columns["latency_ns"][:] = latency_ns
    columns["period"][:] = 1000
    columns["instructions"] = np.cumsum(np.where(np.arange(SAMPLES) % 2, 50, 20_000)).astype("<u8")
    mappings = MappingSnapshot(
        0,
        0,
        np.array([0, 40 * PAGE], np.uint64),
        np.array([40 * PAGE, PAGES * PAGE], np.uint64),
        np.array([MappingKind.HEAP, MappingKind.FILE], np.uint8),
        np.full(2, 3, np.uint8),
        ("[heap]", "/data/table"),
    )
    return Trace(
        {"begin_ns": 0, "tier": tier, "command": ["./program"]},
        (TracedProcess(4711, "program"),),
        Samples(**columns),
        mappings=(mappings,),
        ending=Ending(0, runtime_ms * 1_000_000, 0),
    )


SLOW, FAST = made("slow", 300, 400, 1), made("fast", 150, 200, 2)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    write_trace(tmp_path / "slow", SLOW)
    write_trace(tmp_path / "fast", FAST)
    return [str(tmp_path / "slow"), str(tmp_path / "fast")]


Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of so few samples explain their times badly; those notes are about other runs."""
    for share in ("ALONE_SHARE", "BEHIND_SHARE"):
        monkeypatch.setattr(model, share, 1.0)


def answer(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["estimate", *words, "--json"]) == Exit.OK
    return json.loads(capsys.readouterr().out)


def test_estimate_layout_json_expected_fields(files: list[str], capsys: Capture) -> None:
    found = answer(capsys, *files, "--hot-first", "25%", "--cut-by", "time")
    assert {key: found[key] for key in ("model", "cut_by", "windows", "clock", "notes")} == {
        "model": "hmd",
        "cut_by": "time",
        "windows": 60,
        "clock": "monotonic",
        "notes": [],
    }
    assert (found["slow_s"], found["fast_s"]) == (0.4, 0.2)
    slow, hot, fast = found["estimates"]
    assert (slow["layout"], hot["layout"], fast["layout"]) == (
        "all slow",
        "hottest 25%",
        "all fast",
    )
    assert (slow["runtime_s"], fast["runtime_s"]) == pytest.approx((0.4, 0.2))
    assert (slow["over_all_fast"], fast["over_all_fast"]) == pytest.approx((2, 1))
    assert (slow["access_share"], fast["access_share"]) == (0, 1)
    assert hot["fast_bytes"] == round(found["pages"] / 4) * PAGE
    # The 25 hottest of geometric pages: 1 - 0.95^25.
    assert hot["access_share"] == pytest.approx(0.72, abs=0.03)
    assert 0.2 < hot["low_s"] < hot["runtime_s"] < hot["high_s"] < 0.4
    assert sum(phase["runtime_s"] for phase in found["phases"]) == pytest.approx(hot["runtime_s"])
    assert len(found["phases"]) == 10
    assert set(found["phases"][0]) == {"from_s", "to_s", "runtime_s", "all_slow_s", "all_fast_s"}
    regions = {region["name"]: region for region in found["regions"]}
    assert set(regions) == {"[heap]", "/data/table"}
    assert (regions["[heap]"]["pid"], regions["[heap]"]["process"]) == (4711, "program")
    assert regions["[heap]"]["pages"] == 40
    assert regions["[heap]"]["fast_share"] == pytest.approx(25 / 40, abs=0.08)
    assert all(0 <= region["saves_s"] <= 0.2 for region in found["regions"])


@pytest.mark.parametrize(
    ("words", "name", "pages"),
    [
        (["--cold-first", "10%"], "coldest 10%", None),
        (["--interleave", "50%"], "interleaved 50%", None),
        (["--fast-bytes", "40KiB"], "hottest that fit", 10),
        (["--range", "0-5000", "--range", "9000-a000"], "ranges", 6),
        (["--layout", "FILE"], "hot.txt", 3),
    ],
)
def test_estimate_layout_options_expected_pages(
    files: list[str],
    tmp_path: Path,
    capsys: Capture,
    words: list[str],
    name: str,
    pages: int | None,
) -> None:
    (tmp_path / "hot.txt").write_text("# the first three\n0-3000\n")
    words = [str(tmp_path / "hot.txt") if word == "FILE" else word for word in words]
    document = answer(capsys, *files, *words, "--by", "region")
    (_, found, _) = document["estimates"]
    assert found["layout"] == name
    assert pages is None or found["fast_bytes"] == pages * PAGE
    assert 0.2 < found["runtime_s"] < 0.4
    assert found["low_s"] < found["runtime_s"] < found["high_s"]
    assert "phases" not in document
    assert "regions" in document


def test_estimate_sweep_json_steps_and_knee(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    words = ["--sweep", "--steps", "8", "--picture", str(tmp_path / "p.png")]
    found = answer(capsys, *files, *words)
    steps = found["sweep"]["steps"]
    assert len(steps) == 9
    assert (steps[0]["fast_bytes"], steps[-1]["fast_bytes"]) == (0, found["pages"] * PAGE)
    assert [steps[0]["runtime_s"], steps[-1]["runtime_s"]] == pytest.approx([0.4, 0.2])
    assert found["sweep"]["knee"] in steps[1:5]
    enough = found["sweep"]["within_5_percent"]
    assert enough == next(step for step in steps if step["over_all_fast"] <= 1.05)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_estimate_sweep_table_names_knee_and_needed_memory(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert main(["estimate", *files, "--sweep"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.count("<- knee") == 1
    assert "The knee is at " in out
    assert "To be within 5 % of all fast it needs " in out
    write_trace(tmp_path / "near", made("slow", 160, 205, 1))
    assert main(["estimate", str(tmp_path / "near"), files[1], "--sweep"]) == Exit.OK
    assert "needs no fast memory" in capsys.readouterr().out


def test_estimate_schedule_moves_priced(files: list[str], tmp_path: Path, capsys: Capture) -> None:
    moves = tmp_path / "moves.csv"
    moves.write_text("".join(f"0,{page * PAGE:x},fast\n" for page in range(PAGES)))
    words = [*files, "--schedule", str(moves), "--move-ns", "10000"]
    found = answer(capsys, *words)
    assert found["schedule"]["moved_pages"] == PAGES
    assert found["schedule"]["moving_s"] == pytest.approx(PAGES * 1e-5)
    assert found["schedule"]["runtime_s"] == pytest.approx(0.2 + PAGES * 1e-5)
    # From a layout in which half of them are there.
    found = answer(capsys, *words, "--range", f"0-{50 * PAGE:x}")
    assert found["schedule"]["moved_pages"] == PAGES - 50
    assert main(["estimate", *words]) == Exit.OK
    assert "to move 100 pages" in capsys.readouterr().out


def test_estimate_table_shows_layouts_phases_and_regions(files: list[str], capsys: Capture) -> None:
    assert main(["estimate", *files]) == Exit.OK
    out = capsys.readouterr().out
    for text in ("all slow", "all fast", "as recorded", "by phase", "by region", "/data/table"):
        assert text in out


def test_estimate_window_options_change_windows(files: list[str], capsys: Capture) -> None:
    assert answer(capsys, *files, "--windows", "7")["windows"] == 7
    found = answer(capsys, *files, "--windows", "4", "--cut-by", "accesses")
    assert (found["windows"], found["cut_by"]) == (4, "accesses")


def moved(trace: Trace) -> Trace:
    address = trace.samples.address + np.uint64(0x5555_0000_0000)
    return replace(trace, samples=replace(trace.samples, address=address))


def without_pairs(trace: Trace) -> Trace:
    none = np.zeros_like(trace.samples.instructions)
    return replace(trace, samples=replace(trace.samples, instructions=none))


@pytest.mark.parametrize(
    ("slow", "fast", "message"),
    [
        (SLOW, moved(FAST), "setarch -R"),
        (without_pairs(SLOW), without_pairs(FAST), "--no-pairs"),
        (SLOW, replace(FAST, about={"command": ["./other"]}), "record different commands"),
        (SLOW, replace(FAST, ending=Ending(0, 500_000_000, 0)), "took longer"),
        (SLOW, replace(FAST, samples=Samples.empty()), "has no samples"),
    ],
)
def test_estimate_doubtful_traces_note_and_result(
    files: list[str], capsys: Capture, slow: Trace, fast: Trace, message: str
) -> None:
    write_trace(Path(files[0]), slow)
    write_trace(Path(files[1]), fast)
    assert main(["estimate", *files, "--interleave", "50%", "--json"]) == Exit.OK
    out, err = capsys.readouterr()
    assert message in err
    assert all(line.startswith("hmd: note: ") for line in err.splitlines())
    assert any(message in note for note in json.loads(out)["notes"])


def test_estimate_incompatible_traces_refused(files: list[str], capsys: Capture) -> None:
    assert main(["estimate", files[1], files[0]]) == Exit.USAGE
    write_trace(Path(files[1]), replace(FAST, about={**FAST.about, "clock": "modelled"}))
    assert main(["estimate", *files]) == Exit.USAGE
    write_trace(Path(files[0]), replace(SLOW, samples=Samples.empty()))
    assert main(["estimate", *files]) == Exit.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for line, why in zip(lines, ("slow one first", "one machine", "no samples"), strict=True):
        assert why in line


def placed(trace: Trace, nodes: list[int]) -> Trace:
    """A trace without --tier whose pages are seen on these nodes, in equal parts."""
    start = np.arange(len(nodes), dtype=np.uint64) * np.uint64(10 * PAGE)
    pages = np.full(len(nodes), 10, np.uint32)
    change = PlacementChange(0, 0, start, pages, np.array(nodes, np.int16))
    return replace(trace, about={"command": ["./program"]}, placement=(change,))


@pytest.mark.parametrize("words", [[], ["--sweep"]])
def test_estimate_one_trace_given_twice_is_refused(
    files: list[str], capsys: Capture, words: list[str]
) -> None:
    write_trace(Path(files[0]), replace(SLOW, about={"command": ["./program"]}))
    assert main(["estimate", files[0], files[0], *words]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert "are the same recording" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("slow", "fast", "same"),
    [([1] * 10, [1] * 10, True), ([0, 1], [0, 1], True), ([1] * 10, [0] * 10, False)],
)
def test_estimate_two_runs_of_one_placement_are_refused(
    files: list[str], capsys: Capture, slow: list[int], fast: list[int], same: bool
) -> None:
    write_trace(Path(files[0]), placed(SLOW, slow))
    write_trace(Path(files[1]), placed(FAST, fast))
    assert main(["estimate", *files, "--sweep"]) == (Exit.USAGE if same else Exit.OK)
    assert (
        "both runs had the same placement: nothing to compare" in capsys.readouterr().err
    ) == same


@pytest.mark.parametrize(
    "words",
    [
        ["--schedule", "x", "--sweep"],
        ["--schedule", "x", "--by", "region"],
        ["--move-ns", "9"],
        ["--picture", "p.png"],
        ["--steps", "9"],
        ["--sweep", "--by", "phase"],
        ["--recorded-on", "slow"],
        ["--latencies", "90,250"],
        ["--bandwidths", "40,20"],
        ["--block-bytes", "256"],
    ],
)
def test_estimate_conflicting_options_refused(
    files: list[str], capsys: Capture, words: list[str]
) -> None:
    assert main(["estimate", *files, *words]) == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("option", ["--layout", "--schedule"])
def test_estimate_invalid_file_reported_with_line(
    files: list[str], tmp_path: Path, capsys: Capture, option: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("# one\nnonsense\n")
    assert main(["estimate", *files, option, str(wrong)]) == Exit.CONFIG
    assert capsys.readouterr().err.startswith(f"hmd: {wrong}:2: 'nonsense' is no ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" + "9" * 5000 + "]", "a number of the JSON has too many digits"),
        ("[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_estimate_layout_of_hostile_json_reported_with_line(
    files: list[str], tmp_path: Path, capsys: Capture, text: str, problem: str
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(text)
    assert main(["estimate", *files, "--layout", str(wrong)]) == Exit.CONFIG
    assert capsys.readouterr().err == f"hmd: {wrong}:1: {problem}\n"


@pytest.mark.parametrize("header", ["time_s,address,tier", "time,address,tier"])
def test_estimate_schedule_in_another_unit_refused(
    files: list[str], tmp_path: Path, capsys: Capture, header: str
) -> None:
    moves = tmp_path / "moves.csv"
    moves.write_text(f"{header}\n1,0,fast\n")
    assert main(["estimate", *files, "--schedule", str(moves)]) == Exit.CONFIG
    assert "the columns are time_ms,address,tier" in capsys.readouterr().err
    moves.write_text("time_ms, address, tier\n1,0,fast\n")
    assert answer(capsys, *files, "--schedule", str(moves))["schedule"]["moved_pages"] == 1


def test_estimate_addresses_without_sampled_page_noted(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "hot.txt").write_text("7f0000000000-7f0040000000\n")
    (tmp_path / "moves.csv").write_text("1,7f0000000000,fast\n")
    for words, where in (
        (["--range", "7f0000000000-7f0040000000"], "in these ranges"),
        (["--layout", str(tmp_path / "hot.txt")], "in these ranges"),
        (["--schedule", str(tmp_path / "moves.csv")], "at the addresses of the schedule"),
    ):
        assert main(["estimate", *files, *words, "--json"]) == Exit.OK
        out, err = capsys.readouterr()
        assert err.startswith(f"hmd: note: no sampled page lies {where}; 'hmd estimate")
        assert len(json.loads(out)["notes"]) == 1
    assert not answer(capsys, *files, "--range", "0-5000")["notes"]


def test_estimate_picture_without_matplotlib_names_extra(
    files: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = tmp_path / "p.png"
    assert main(["estimate", *files, "--sweep", "--picture", str(picture)]) == Exit.MISSING
    assert "pip install 'hmd-tiering[plot]'; or use --json" in capsys.readouterr().err


def test_estimate_import_loads_no_numba() -> None:
    import subprocess

    script = "import sys, hmd.estimate; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_estimate_python_example_of_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_trace(tmp_path / "slow.hmdt", SLOW)
    write_trace(tmp_path / "fast.hmdt", FAST)
    page = Path(__file__).parents[3] / "docs/how-to/estimating.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(page), "exec"), {})
    assert "Interval(" in capsys.readouterr().out


def test_estimate_of_one_run_shares_of_accesses_and_what_a_second_needs(
    files: list[str], capsys: Capture
) -> None:
    found = answer(capsys, files[0])
    steps = found["steps"]
    assert [step["fast_bytes"] for step in steps][-1] == found["pages"] * PAGE
    shares = [step["access_share"] for step in steps]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, pytest.approx(1.0))
    assert shares[2] > 0.5  # a fifth of the pages: the lower ones
    assert {region["name"] for region in found["regions"]} == {"[heap]", "/data/table"}
    assert found["waiting_s"] == pytest.approx(SAMPLES * 1000 * 300e-9)
    assert main(["estimate", files[0]]) == Exit.OK
    printed = capsys.readouterr()
    assert "[heap]" in printed.out
    assert "A runtime takes a second trace" in printed.out
    assert "hottest-quarter recall about" in printed.err


def test_estimate_of_one_run_layout_share_of_its_accesses(
    files: list[str], capsys: Capture
) -> None:
    found = answer(capsys, files[0], "--range", f"0-{20 * PAGE:x}")
    below = SLOW.samples.address < np.uint64(20 * PAGE)
    assert found["steps"][0]["access_share"] == pytest.approx(float(below.mean()))


def test_estimate_of_one_run_with_latencies_predicts_runtimes(
    files: list[str], capsys: Capture
) -> None:
    found = answer(capsys, files[0], "--latencies", "100,300")
    steps = found["steps"]
    # All slow is recorded; the more is fast, the less is known.
    assert (steps[0]["runtime_s"], steps[0]["low_s"]) == pytest.approx((0.4, 0.4))
    runtimes = [step["runtime_s"] for step in steps]
    assert min(runtimes) == runtimes[-1] < runtimes[0]
    assert 2 * (steps[0]["high_s"] - steps[0]["low_s"]) < steps[-1]["high_s"] - steps[-1]["low_s"]
    assert any("is predicted, not recorded" in doubt for doubt in found["doubts"])
    assert main(["estimate", files[0], "--latencies", "100,300"]) == Exit.OK
    assert "95 % interval" in capsys.readouterr().out


def test_estimate_of_one_import_asks_for_its_tier(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    write_trace(tmp_path / "imported", replace(SLOW, about={"source": "perf.data"}))
    words = ["estimate", str(tmp_path / "imported"), "--latencies", "100,300"]
    assert main(words) == Exit.USAGE
    assert "--recorded-on" in capsys.readouterr().err
    assert main([*words, "--recorded-on", "slow"]) == Exit.OK
    capsys.readouterr()
    # Where bandwidth is all that counts, a slow tier that moves blocks takes longer.
    words += ["--recorded-on", "fast", "--bandwidths", "0.001,0.001"]
    lines, blocks = (answer(capsys, *words[1:], *more) for more in ([], ["--block-bytes", "256"]))
    assert blocks["steps"][0]["runtime_s"] > 2 * lines["steps"][0]["runtime_s"]
    # No memory moves less than a line.
    with pytest.raises(SystemExit):
        main([*words, "--block-bytes", "63"])


def test_estimate_of_several_pairs_counts_their_scatter(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    alone = answer(capsys, *files, "--hot-first", "25%")["estimates"][1]
    pairs = []
    for number, factor in enumerate((0.9, 1.1)):
        for name, run in (("slow", SLOW), ("fast", FAST)):
            ending = Ending(0, int(run.runtime_ns * factor), 0)
            time_ns = (run.samples.time_ns * factor).astype(np.uint64)
            samples = replace(run.samples, time_ns=time_ns)
            write_trace(tmp_path / f"{name}{number}", replace(run, ending=ending, samples=samples))
        pairs += ["--also", str(tmp_path / f"slow{number}"), str(tmp_path / f"fast{number}")]
    found = answer(capsys, *files, *pairs, "--hot-first", "25%")
    assert found["pairs"] == 3
    slow, hot, _ = found["estimates"]
    assert hot["runtime_s"] == pytest.approx(alone["runtime_s"], rel=0.02)
    assert hot["high_s"] - hot["low_s"] > 1.5 * (alone["high_s"] - alone["low_s"])
    assert slow["low_s"] < 0.36 < slow["runtime_s"] < 0.44 < slow["high_s"]


@pytest.mark.parametrize(
    "words",
    [["--windows", "5"], ["--move-ns", "3"], ["--by", "phase"]],
)
def test_estimate_of_one_run_refuses_questions_about_runtimes(
    files: list[str], words: list[str], capsys: Capture
) -> None:
    assert main(["estimate", files[0], *words]) == Exit.USAGE
    assert "take two traces" in capsys.readouterr().err


def test_estimate_of_imports_states_the_error_of_sampling(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    write_trace(tmp_path / "slow", replace(SLOW, about={**SLOW.about, "source": "perf.data"}))
    found = answer(capsys, *files)
    assert any("runtime error (estimate) about" in note for note in found["notes"])
