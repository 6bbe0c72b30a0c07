# SPDX-License-Identifier: MIT
"""The program that replays training steps: its layout, and its hints over a real socket."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np

from bench.tensors.guest_step import ADDRESS, PROGRAM, layout, scaled_step, write_step
from hmd.base.units import MIB, PAGE_BYTES
from hmd.control.commands import HintReceiver
from hmd.control.status_socket import StatusSocket
from hmd.emulate.assets import compile_static
from hmd.linux.procfs import ProcessId, read_stat
from hmd.policy.use_hints import HintTable
from hmd.tensors.lifetimes import vitality

PEAK = 8 * MIB


def test_layout_tensors_alive_at_once_do_not_overlap() -> None:
    trace = scaled_step("transformer", PEAK)
    offset, size = layout(trace)
    life = vitality(trace)
    end = offset + trace.tensor_bytes
    assert end.max() <= size < 1.3 * PEAK
    for kernel in range(0, trace.kernels, 50):
        ends = np.maximum(life.death, life.last + 1)
        alive = trace.tensor_persistent | ((life.first <= kernel) & (kernel < ends))
        rows = np.flatnonzero(alive)[np.argsort(offset[alive])]
        assert (end[rows][:-1] <= offset[rows][1:]).all()


def test_program_steps_and_its_hints_are_taken(tmp_path: Path) -> None:
    size = write_step(scaled_step("transformer", PEAK), PEAK // 5, tmp_path / "step", "sentinel")
    table = HintTable()
    followed: set[ProcessId] = set()
    receiver = HintReceiver(table, lambda: followed)
    server = StatusSocket(tmp_path / "hmd.sock", {"hint": receiver.receive})
    try:
        program = [compile_static(PROGRAM), tmp_path / "step", "30", server.path]
        with subprocess.Popen(list(map(str, program)), stdout=subprocess.PIPE, text=True) as run:
            stat = read_stat(run.pid)
            assert stat is not None
            followed.add(stat.process)
            hints = None
            while run.poll() is None:  # its output fits a pipe
                hints = table.at([stat.process], time.monotonic()) or hints
                time.sleep(0.005)
            output, _ = run.communicate()
        for _ in range(500):  # the server reads what is left behind
            if sum(receiver.outcomes.values()) >= 30:
                break
            time.sleep(0.01)
    finally:
        server.close()
    assert output.count(" ns\n") == 30
    assert "tensor_step done" in output
    assert receiver.outcomes["done"] > 15  # the last ones may come when it has exited
    assert hints is not None
    assert hints.address.min() >= ADDRESS
    assert hints.end.max() <= ADDRESS + size
    assert (hints.address % PAGE_BYTES == 0).all()
