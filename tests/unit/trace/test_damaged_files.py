# SPDX-License-Identifier: MIT
"""Traces whose content was changed and whose checksums were made right again.

A mutant is read, or refused in one line; the seed makes every run the same.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.simulate import sampled_program
from hmd.trace.blocks import Block, read_block, read_header, write_block, write_header
from hmd.trace.reader import TraceError, TraceFile, read_trace
from hmd.trace.summary import summarise
from hmd.trace.trace import Trace
from hmd.trace.writer import write_trace
from tests.unit.trace.test_trace_file import trace_of

MUTANTS = 3000
ESTIMATED = 80
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 1.5, float("inf"), float("nan"), "", "x",
    "\x00\n", [], {}, [[]], {"nodes": 7}, [{"nodes": ["x"]}], [{"nodes": [0], "total_bytes": "x"}],
)  # fmt: skip
ABOUT = {
    "hmd": "1", "command": ["prog", "--x"], "tier": "slow", "clock": "monotonic", "begin_ns": 5,
    "period": 32, "pairs": True, "pair_period": 35, "reorder_window": 224, "fill_buffers": 12,
    "instructions_detail": "counted", "source": "perf.data", "levels": {"L1": 3}, "machine": "x",
    "tiers": [{"nodes": [0], "total_bytes": 1 << 30, "read_latency_ns": 80.0,
               "write_latency_ns": None, "read_bandwidth_mbps": 100, "write_bandwidth_mbps": None}],
}  # fmt: skip


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    """The blocks of a small trace."""
    path = tmp_path_factory.mktemp("trace") / "whole.hmdt"
    whole = trace_of(40)
    parts = Trace(ABOUT, *whole_parts(whole))
    write_trace(path, replace(parts, threads=whole.threads, traffic=whole.traffic))
    found = []
    with path.open("rb") as file:
        read_header(file)
        while (block := read_block(file)) is not None:
            found.append(block)
    return found


def whole_parts(whole: Trace) -> tuple[Any, ...]:
    columns = {name: getattr(whole.samples, name) for name in SAMPLE_COLUMNS}
    return (whole.processes, Samples(**columns), whole.mappings, whole.placement, whole.progress,
            whole.losses, whole.ending)  # fmt: skip


def mutant(block: Block, rng: random.Random) -> Block:
    """Change a word, a value, or a column's type or presence."""
    words, columns = dict(block.words), dict(block.columns)
    kind = rng.randrange(4) if columns else 0
    name = rng.choice(list(columns)) if columns else ""
    if kind == 0:
        word = rng.choice([*words, "process"])
        words[word] = rng.choice(VALUES)
        if rng.random() < 0.2:
            del words[word]
    elif kind == 1:
        column = columns[name].copy()
        row = rng.randrange(len(column))
        extremes = (0, 1, 7, 255, 2**31, 2**63 - 4096, int(np.iinfo(column.dtype).max))
        column[row] = min(rng.choice(extremes), int(np.iinfo(column.dtype).max))
        columns[name] = column
    elif kind == 2:
        columns[name] = columns[name].astype(rng.choice(["<f8", "<u2", "<i8", "u1", "<u8"]))
    elif rng.random() < 0.5:
        del columns[name]
    else:
        columns = {key: column[: rng.randrange(3)] for key, column in columns.items()}
        shortest = min(len(column) for column in columns.values())
        columns = {key: column[:shortest] for key, column in columns.items()}
    return Block(block.tag, words, columns)


def write_mutant(path: Path, blocks: list[Block], rng: random.Random) -> None:
    chosen = rng.randrange(len(blocks))
    with path.open("wb") as file:
        write_header(file)
        for number, block in enumerate(blocks):
            if number == chosen and rng.random() < 0.2:
                file.write(raw_mutant(block, rng))
                continue
            changed = mutant(block, rng) if number == chosen else block
            write_block(file, changed.tag, changed.words, changed.columns)
        if rng.random() < 0.1:
            write_block(file, blocks[chosen].tag, blocks[chosen].words, blocks[chosen].columns)


def raw_mutant(block: Block, rng: random.Random) -> bytes:
    """Return a block whose head, description or data says something else."""
    columns = [[name, column.dtype.str] for name, column in block.columns.items()]
    described: Any = {"words": dict(block.words), "columns": columns}
    rows = len(block)
    match rng.randrange(5):
        case 0:
            rows = rng.choice([0, rows + 1, 1 << 20, (1 << 32) - 1])
        case 1:
            others = ["(1000000,)u8", "(8,)u1", "V0", "S0", "O", "M8[s]", "V64", "<u3", "", "f16"]
            described["columns"] = [[name, rng.choice(others)] for name, _ in columns]
        case 2:
            described = rng.choice([[], None, 5, {"words": 5, "columns": 7}, {"columns": [[]]}])
        case 3:
            described["columns"] = columns * rng.choice([2, 50])
        case 4:
            described["words"] = rng.choice([[], "x", None, {"index": "0"}])
    description = json.dumps(described).encode()
    if rng.random() < 0.1:
        description = b"[" * 60_000
    raw = b"".join(column.tobytes() for column in block.columns.values())
    data = zlib.compress(raw if rng.random() < 0.7 else bytes(1 << 20))
    crc = zlib.crc32(data, zlib.crc32(description))
    head = struct.pack("<4sIIQI", block.tag.encode(), rows, len(description), len(data), crc)
    return head + struct.pack("<I", zlib.crc32(head)) + description + data


def test_mutants_of_traces_read_or_refused_in_one_line(blocks: list[Block], tmp_path: Path) -> None:
    rng, path, refused = random.Random(20), tmp_path / "mutant.hmdt", 0
    for _ in range(MUTANTS):
        write_mutant(path, blocks, rng)
        try:
            summarise(read_trace(path))
            list(TraceFile(path, 16).batches())
        except TraceError as error:
            assert "\n" not in str(error)
            refused += 1
            try:
                summarise(read_trace(path, salvage=True))
            except TraceError as error_again:
                assert "\n" not in str(error_again)
    assert MUTANTS // 2 < refused < MUTANTS


def test_mutants_of_traces_shown_without_traceback(
    blocks: list[Block], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, path = random.Random(21), tmp_path / "mutant.hmdt"
    for number in range(200):
        write_mutant(path, blocks, rng)
        json_wanted = ["--json"] if number % 2 else []
        code = main(["trace", "info", "--salvage", *json_wanted, str(path)])
        assert code in (Exit.OK, Exit.FAILURE)
        printed = capsys.readouterr()
        assert printed.err.count("\n") <= 1
        assert printed.out if code == Exit.OK else printed.err


def test_mutants_of_traces_estimated_or_refused_in_one_line(
    blocks: list[Block], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, mutated, whole = random.Random(22), tmp_path / "mutant.hmdt", tmp_path / "whole.hmdt"
    codes = []
    for number in range(ESTIMATED):
        write_mutant(mutated, blocks, rng)
        with whole.open("wb") as file:
            write_header(file)
            for block in blocks:
                # Another run: as another tier, and faster.
                words = {**block.words, "tier": "fast"} if "tier" in block.words else block.words
                if "runtime_ns" in words:
                    words = {**words, "runtime_ns": words["runtime_ns"] // 2}
                write_block(file, block.tag, words, block.columns)
        pair = [str(mutated), str(whole)] if number % 2 else [str(whole), str(mutated)]
        more = (["--sweep"], ["--hot-first", "25%"], ["--cut-by", "time"], ["--json"])[number % 4]
        codes.append(main(["estimate", *pair, *more]))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        assert codes[-1] in (Exit.OK, Exit.FAILURE, Exit.USAGE), printed.err
        assert printed.out if codes[-1] == Exit.OK else printed.err
    assert 0 < codes.count(Exit.OK) < ESTIMATED


def test_mutants_of_one_trace_estimated_and_simulated_or_refused_in_one_line(
    blocks: list[Block],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_program, "MAX_MISSES", 3000)
    rng, path, codes = random.Random(23), tmp_path / "mutant.hmdt", []
    for _ in range(ESTIMATED // 2):
        write_mutant(path, blocks, rng)
        for words in (["estimate", str(path)], ["simulate", str(path), "--policy", "none"]):
            codes.append(main([*words, "--json"]))
            printed = capsys.readouterr()
            assert "Traceback" not in printed.err
            assert codes[-1] in (Exit.OK, Exit.FAILURE, Exit.USAGE, Exit.TARGET), printed.err
    assert 0 < codes.count(Exit.OK) < ESTIMATED
