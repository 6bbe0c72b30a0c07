# SPDX-License-Identifier: MIT
"""The pictures of the documents, drawn anew from committed results into docs/images.

    python -m bench.documents.pictures [NAME ...]     `make pictures` draws all

Each follows one file of docs/results, so that a picture and the tables beside it show the same
measurement. Those of a run are drawn by it: demo.png by ``hmd demo``, the Grafana dashboard by
``bench.monitoring.dashboard``. Needs the extra plot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.compare import policies
from bench.scale import tick_cost
from bench.suite import estimator
from bench.tensors import sweeps_plot, training_memory
from hmd.policy import registry

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS, IMAGES = ROOT / "docs/results", ROOT / "docs/images"

Draw = Callable[[Mapping[str, Any], Path], None]


def _draw_scale(document: Mapping[str, Any], path: Path) -> None:
    tick_cost.draw(document, path, registry.DEFAULT)


PICTURES: Final[Mapping[str, tuple[str, Draw]]] = {
    "policies": ("policies.json", policies.draw),
    "policies-of-hmd": ("policies.json", policies.draw_policies),
    "estimator": ("estimator.json", estimator.draw),
    "scale": ("scale.json", _draw_scale),
    "tensor-sweeps": ("tensors.json", sweeps_plot.draw),
    "training-memory": ("deep-learning.json", training_memory.draw),
}
"""By the name of a picture: the results that it shows, and what draws it."""


def main(names: list[str]) -> int:
    """Draw the pictures of these names, or all."""
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        print(f"no picture {unknown[0]!r}: take {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    for name in names or PICTURES:
        results, draw = PICTURES[name]
        path = IMAGES / f"{name}.png"
        draw(json.loads((RESULTS / results).read_text()), path)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
