# SPDX-License-Identifier: MIT
"""The demonstration's program, compiled and run on this host."""

import json
import subprocess
from pathlib import Path

import pytest

from hmd.emulate.assets import compile_static
from hmd.emulate.demo.programs import INCLUDES, SOURCE


@pytest.fixture(scope="module")
def program() -> str:
    return str(compile_static(SOURCE, INCLUDES))


def test_hotset_reports_updates_and_intact_memory(program: str) -> None:
    words = [program, "--footprint=4M", "--hot=1M", "--block=64K", "--seconds=0.3", "--interval=50"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["integrity_ok"] is True
    assert lines[-1]["updates"] == [line for line in lines if "t_s" in line][-1]["updates"] > 0
    assert {line["phase"] for line in lines if "phase" in line} == {1, 2}


def test_hotset_with_a_flipped_bit_fails(program: str) -> None:
    """One bit flipped from outside, through /proc/PID/mem, must fail the run."""
    words = [
        program,
        "--footprint=64M",
        "--hot=1M",
        "--block=64K",
        "--share=100",
        "--seconds=0.5",
        "--wait",
    ]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        with Path(f"/proc/{process.pid}/maps").open() as maps:
            sized = [line.split()[0].split("-") for line in maps]
        start = next(int(a, 16) for a, b in sized if int(b, 16) - int(a, 16) >= 64 << 20)
        with Path(f"/proc/{process.pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start + (32 << 20))
            word = bytearray(memory.read(8))
            word[7] ^= 1
            memory.seek(start + (32 << 20))
            memory.write(word)
        process.stdin.write("go\n")
        process.stdin.flush()
        output = process.stdout.read()
        assert process.wait() == 1
    assert json.loads(output.splitlines()[-1])["integrity_ok"] is False


def test_hotset_with_a_hot_set_beyond_memory_is_a_usage_error(program: str) -> None:
    done = subprocess.run(
        [program, "--hot=1G", "--block=64K"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
