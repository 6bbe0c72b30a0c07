# SPDX-License-Identifier: MIT
"""How much memory a step needs, without running it; skipped without PyTorch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import HmdError, UsageError

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch

import hmd.torch
from hmd.tensors.trace import TensorKind
from hmd.torch.advice import Advice
from tests.unit.torch.training import SLOW, Transformer, language_step, words


def advise(model: Any, batch: Any, **options: Any) -> Advice:
    options = {"roofline": SLOW, "points": 3, "planner": "sentinel", "within": 27, **options}
    found: Advice = hmd.torch.advise(model, (batch,), **options)
    return found


def kinds(advice: Advice, kind: TensorKind) -> int:
    trace = advice.trace
    return int(trace.tensor_bytes[trace.tensor_kind == kind].sum())


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(Transformer(layers=2), words(16))


def test_advice_has_curve_and_least_capacity(advice: Advice) -> None:
    sizes = [row.tiers["gpu"] for row in advice.rows]
    assert sizes == sorted(sizes, key=lambda size: size or 0)
    assert advice.rows[0].seconds > advice.rows[-1].seconds
    assert advice.needed_bytes in sizes
    enough = next(row for row in advice.rows if row.tiers["gpu"] == advice.needed_bytes)
    assert enough.seconds <= 1.27 * enough.ideal_seconds


def test_advice_knows_weights_and_state(advice: Advice) -> None:
    weights = sum(each.nbytes for each in Transformer(layers=2).parameters())  # tied ones once
    assert kinds(advice, TensorKind.WEIGHT) == pytest.approx(weights, rel=0.01)
    assert kinds(advice, TensorKind.OPTIMIZER) == pytest.approx(2 * weights, rel=0.01)


def test_advice_of_model_without_data_is_the_same(advice: Advice) -> None:
    with torch.device("meta"):
        model, batch = Transformer(layers=2), torch.zeros(16, 32, dtype=torch.long)
    found = advise(model, batch)
    assert found.peak_bytes == advice.peak_bytes
    assert found.rows == tuple(
        type(row)(**{**vars_of(row), "plan_seconds": mine.plan_seconds})
        for row, mine in zip(advice.rows, found.rows, strict=True)
    )
    assert all(each.device.type == "meta" for each in model.parameters())


def vars_of(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def test_advice_of_model_that_this_machine_cannot_hold() -> None:
    with torch.device("meta"):
        model = Transformer(width=4096, layers=48, words=32_000)
    batch = torch.zeros(4, 2048, dtype=torch.long, device="meta")
    found = advise(model, batch, points=2, optimizer="sgd", planner="lru-free")
    weights = sum(each.nbytes for each in model.parameters())
    assert kinds(found, TensorKind.WEIGHT) == pytest.approx(weights, rel=0.01)
    assert found.peak_bytes > 38e9 + weights


def test_advice_leaves_the_model_as_it_was() -> None:
    model = Transformer(layers=1)
    before = [each.detach().clone() for each in model.parameters()]
    advise(model, words(4), points=2, loss=lambda result: result.square().mean())
    assert all(map(torch.equal, before, model.parameters()))
    assert all(each.grad is None for each in model.parameters())
    language_step(model, 0).backward()


def test_advice_prints_table_and_draws(
    advice: Advice, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    advice.print()
    assert "for a loss of at most 27 %" in " ".join(capsys.readouterr().out.split())
    advice.picture(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_advice_refuses_what_it_cannot_plan() -> None:
    with pytest.raises(UsageError, match="no optimizer 'rprop'"):
        advise(Transformer(layers=1), words(2), optimizer="rprop")
    with pytest.raises(HmdError, match="Identity has no parameter that is trained"):
        advise(torch.nn.Identity(), torch.ones(2))
    with pytest.raises(UsageError, match="points: give 2 or more"):
        advise(Transformer(layers=1), words(2), points=1)
