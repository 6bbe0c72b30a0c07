"""Trained designs of knobs as files.

A design takes the figures of a tick and gives the places of the knobs in the next. It runs in
numpy: PyTorch is needed for training alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.errors import ConfigError
from hmd.finished_file import finished_file
from hmd.learn.environment.knob_signals import SIGNALS, Figures
from hmd.learn.environment.knobs import NAMES
from hmd.learn.knob_designs.knob_network import KnobNetwork
from hmd.learn.knob_designs.knob_table import KnobTable
from hmd.numpy_archive import DAMAGED, read_arrays, reason_of

KINDS: Final[dict[str, type[KnobNetwork] | type[KnobTable]]] = {
    KnobNetwork.kind: KnobNetwork,
    KnobTable.kind: KnobTable,
}
"""Designs of knobs by name."""

_HEADER: Final = "header"


class KnobDesign(Protocol):
    """A trained design; ``kind`` is its name."""

    kind: str

    def __call__(self, signals: Figures) -> list[float]:
        """Return the places of the knobs in the next tick."""
        ...

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the file has of it."""
        ...


def write_design(design: KnobDesign, path: Path) -> None:
    """Write a design to an ``.npz`` file; raises as ``finished_file``."""
    header = np.frombuffer(json.dumps(_header(design.kind)).encode(), np.uint8)
    with finished_file(path) as file:
        np.savez(file, allow_pickle=False, **{_HEADER: header}, **design.columns())


def read_design(path: Path) -> KnobDesign:
    """Read what ``write_design`` wrote; ConfigError for any other file, or of other signals."""
    try:
        columns = read_arrays(path)
        header = json.loads(columns.pop(_HEADER).tobytes())
        kind = str(header["design"])
        if header != _header(kind):
            raise ValueError("it was trained on other signals or knobs")
        return KINDS[kind].of(columns)
    except DAMAGED as error:
        raise ConfigError(
            f"{path}: is no usable design of knobs ({reason_of(error)}): train it with"
            " hmd train --design"
        ) from error


def _header(kind: str) -> dict[str, Any]:
    return {"design": kind, "signals": list(SIGNALS), "knobs": list(NAMES)}
