# SPDX-License-Identifier: MIT
"""Training with fast and slow memory: the arena, and hints to a daemon; skipped without PyTorch."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import UsageError

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hmd.torch
from hmd.base.units import PAGE_BYTES
from hmd.control.status_socket import StatusSocket
from hmd.policy.use_hints import HintTable
from hmd.tensors.prices import StepPrice
from hmd.torch.tiering import Arena, TieredTraining
from tests.fakes.hints import serve_hints, this_process
from tests.unit.torch.training import Transformer, language_step

FAST = "2MiB"
STEPS = 6
Step = Callable[[nn.Module, int], Any]


def model() -> nn.Module:
    return Transformer(64, 3, 64)


def train(
    step: Step = language_step,
    *,
    path: Path | None = None,
    steps: int = STEPS,
    between: Callable[[int], None] = lambda number: None,
) -> tuple[list[bytes], list[torch.Tensor], TieredTraining | None]:
    """Return losses and weights, with hints to a socket or plain."""
    torch.manual_seed(0)
    trained = model()
    optimizer = torch.optim.Adam(trained.parameters())
    tiered = None
    if path is not None:
        report: list[StepPrice] = []
        tiered = hmd.torch.tiered(
            trained, optimizer, FAST, planner="sentinel", socket=path, report=report.append
        )
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = step(trained, number)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().numpy().tobytes())
        del loss
        between(number)
    if tiered is not None:
        tiered.close()
    return losses, [each.detach().clone() for each in trained.parameters()], tiered


def same(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> bool:
    return first[0] == second[0] and all(map(torch.equal, first[1], second[1]))


@pytest.fixture
def table() -> HintTable:
    return HintTable()


@pytest.fixture
def served(tmp_path: Path, table: HintTable) -> Iterator[StatusSocket]:
    server = serve_hints(tmp_path / "hmd.sock", table)
    yield server
    server.close()


def wait_for_hints(table: HintTable, least: int = 1) -> Any:
    for _ in range(500):
        found = table.at([this_process()], time.monotonic())
        if found is not None and len(found.process) >= least:
            return found
        time.sleep(0.01)
    raise AssertionError("no hints came")


def test_tiered_losses_are_those_of_plain_run_and_hints_come(
    served: StatusSocket, table: HintTable
) -> None:
    expected = train()
    found: list[Any] = []
    result = train(
        path=served.path,
        between=lambda step: found.append(wait_for_hints(table)) if step > 3 else None,
    )
    assert same(result, expected)
    tiered, hints = result[2], found[-1]
    assert tiered is not None
    assert tiered.dropped == 0
    assert tiered.sent >= STEPS - 3
    assert tiered.arena.bytes > 0
    assert (hints.address % PAGE_BYTES == 0).all()
    assert (hints.end > hints.address).all()


def test_tiered_addresses_are_the_same_in_each_step(served: StatusSocket, table: HintTable) -> None:
    placed: list[dict[int, tuple[int, int]]] = []
    torch.manual_seed(0)
    trained = model()
    optimizer = torch.optim.Adam(trained.parameters())
    with hmd.torch.tiered(
        trained, optimizer, FAST, planner="sentinel", socket=served.path, report=lambda _: None
    ) as tiered:
        for number in range(STEPS):
            optimizer.zero_grad()
            language_step(trained, number).backward()
            optimizer.step()
            placed.append(dict(tiered._placed))
    assert placed[2]
    assert placed[2] == placed[3] == placed[-1]


def test_tiered_without_daemon_changes_nothing(tmp_path: Path) -> None:
    result = train(path=tmp_path / "absent.sock")
    assert same(result, train())
    assert result[2] is not None
    assert result[2].sent == 0
    assert result[2].dropped > 0


def test_tiered_daemon_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    """Its backlog is full at once, and it never reads."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hung.sock"))
        listener.listen(0)
        result = train(path=tmp_path / "hung.sock", steps=12)
    assert same(result, train(steps=12))
    assert result[2] is not None
    assert result[2].dropped > 0


def test_tiered_daemon_that_restarts_gets_all_hints_again(tmp_path: Path) -> None:
    tables = [HintTable(), HintTable()]
    path = tmp_path / "hmd.sock"
    servers: list[StatusSocket] = []

    def serve() -> None:
        servers.append(serve_hints(path, tables[len(servers)]))

    def between(step: int) -> None:
        if step == 5:
            counts.append(len(wait_for_hints(tables[0], 50).process))
            servers[0].close()
        elif step == 7:
            serve()
        elif step == 11:
            assert len(wait_for_hints(tables[1], counts[0]).process) == counts[0]

    counts: list[int] = []
    serve()
    try:
        result = train(path=path, steps=12, between=between)
    finally:
        servers[-1].close()
    assert same(result, train(steps=12))


@pytest.mark.parametrize(
    "step",
    [
        lambda trained, number: language_step(trained, number, 12 if number in (3, 4) else 16),
        lambda trained, number: language_step(trained, number, 12 if number > 5 else 16),
        lambda trained, number: (
            language_step(trained, number) + language_step(trained, number + 1, 8)
        ),
        lambda trained, number: checkpoint(
            lambda: language_step(trained, number), use_reentrant=False
        ),
    ],
    ids=["other-shape", "other-shape-for-good", "two-forwards", "checkpointing"],
)
def test_tiered_any_step_trains_as_plain(served: StatusSocket, step: Step) -> None:
    assert same(train(step, path=served.path, steps=12), train(step, steps=12))


def test_tiered_changed_saved_tensor_is_an_error_as_without(served: StatusSocket) -> None:
    def step(trained: nn.Module, number: int) -> Any:
        weight = next(trained.parameters())
        product = (weight * 2).sigmoid()
        loss = product.sum()
        with torch.no_grad():
            product.mul_(2)
        return loss

    for path in (None, served.path):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            train(step, path=path)


def test_tiered_system_without_computing_in_place_refused() -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters())
    with pytest.raises(UsageError, match="cannot compute from all tiers"):
        hmd.torch.tiered(trained, optimizer, FAST, tiers="g10")


def test_arena_parts_of_storage_share_a_copy_until_one_is_written() -> None:
    arena = Arena()
    whole = torch.randn(1024, 96)
    first, second = whole[:, :32], whole[:, 32:64]
    copies = [arena.save(first), arena.save(second)]
    assert [is_new for _, is_new in copies] == [True, False]
    assert torch.equal(copies[1][0].tensor(), second)
    whole[:, 64:] = 7.0
    third, is_new = arena.save(whole[:, 64:])
    assert is_new
    assert torch.equal(third.tensor(), whole[:, 64:])
    assert third.tensor().stride() == whole[:, 64:].stride()


def test_arena_place_is_kept_while_anyone_reads_it() -> None:
    arena = Arena()
    value = torch.arange(65536.0)
    copy, _ = arena.save(value)
    read = copy.tensor()[:100]
    address = copy.data.data_ptr()
    del copy
    arena.begin_step()
    other, _ = arena.save(torch.zeros(65536))
    assert other.data.data_ptr() != address
    assert torch.equal(read, value[:100])
    del read
    assert arena.save(torch.ones(65536))[0].data.data_ptr() == address
