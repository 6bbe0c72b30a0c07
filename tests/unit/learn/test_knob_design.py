"""Designs of knobs: what they choose, and their files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hmd.errors import ConfigError
from hmd.learn.environment.knob_signals import SIGNALS
from hmd.learn.environment.knobs import NAMES
from hmd.learn.knob_designs.knob_design import read_design, write_design
from hmd.learn.knob_designs.knob_network import KnobNetwork
from hmd.learn.knob_designs.knob_table import STATES, STEPS, VOLUMES, KnobTable, state_of

WIDTHS = (len(SIGNALS), 5, len(NAMES))


def network(seed: int = 1) -> KnobNetwork:
    random = np.random.default_rng(seed)
    return KnobNetwork(
        tuple(
            (
                random.normal(0, 0.5, (out, into)).astype(np.float32),
                random.normal(0, 0.5, out).astype(np.float32),
            )
            for into, out in pairwise(WIDTHS)
        )
    )


def signals(**given: float) -> np.ndarray:
    found = np.zeros(len(SIGNALS), np.float32)
    for name, value in given.items():
        found[SIGNALS.index(name)] = value
    return found


def test_network_without_signals_gives_its_biases() -> None:
    (_, first), (matrix, second) = network().layers
    expected = np.clip(matrix @ np.tanh(first) + second, -1, 1)
    assert network()(signals()) == pytest.approx(expected.tolist(), rel=1e-6)


def test_table_chooses_volume_and_steps_the_threshold() -> None:
    table = KnobTable.zeros()
    table.volume[7, 1] = table.step[7, 4] = 1.0
    seen = signals(fast_share=0.68, samples=0.4, last_confidence=-0.25)
    assert table(seen) == [VOLUMES[1], -0.25 + STEPS[4], 0.0]
    assert table(signals(fast_share=0.68, samples=0.4, last_confidence=0.9))[1] == 1.0


def test_table_states_are_tenths_and_nothing_sampled() -> None:
    shares = (0.0, 0.04, 0.06, 0.5, 1.0)
    assert [state_of(signals(fast_share=each, samples=0.1)) for each in shares] == [0, 0, 1, 5, 10]
    assert state_of(signals(fast_share=0.5)) == STATES - 1


@pytest.mark.parametrize("design", [network(), KnobTable.zeros()], ids=["knobs", "table"])
def test_design_written_and_read_is_equal(design: KnobNetwork | KnobTable, tmp_path: Path) -> None:
    path = tmp_path / "design.npz"
    write_design(design, path)
    again = read_design(path)
    assert again.kind == design.kind
    for name, column in design.columns().items():
        assert np.array_equal(again.columns()[name], column)
    assert [each.name for each in tmp_path.iterdir()] == ["design.npz"]


def test_design_of_other_signals_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_design(network(), tmp_path / "design.npz")
    monkeypatch.setattr("hmd.learn.knob_designs.knob_design.SIGNALS", ("other",))
    with pytest.raises(ConfigError, match="other signals or knobs"):
        read_design(tmp_path / "design.npz")


@pytest.mark.parametrize("problem", ["missing", "damaged", "shape", "not finite", "no layer"])
def test_design_file_that_is_none_refused_in_one_line(problem: str, tmp_path: Path) -> None:
    path, (first, last) = tmp_path / "design.npz", network().layers
    if problem == "damaged":
        path.write_bytes(b"PK\x03\x04 nothing")
    elif problem == "shape":
        write_design(KnobNetwork((last,)), path)
    elif problem == "not finite":
        write_design(KnobNetwork((first, (last[0] * np.float32(np.inf), last[1]))), path)
    elif problem == "no layer":
        write_design(KnobNetwork(()), path)
    with pytest.raises(ConfigError, match="is no usable design of knobs") as error:
        read_design(path)
    assert len(str(error.value).splitlines()) == 1
