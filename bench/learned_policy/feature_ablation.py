# SPDX-License-Identifier: MIT
"""What each feature of the learned policy brings to its predictions, on programs held out.

    python -m bench.learned_policy.feature_ablation [--publish]

For each program, networks are fitted to the rows of all other programs: with all features, without
each single one, and without each group. A figure is how much better than the rates of ``benefit`` a
network predicts the misses of the program held out, in bits per miss (Poisson likelihood); negative
where it predicts worse. Rows are those of :mod:`bench.learned_policy.networks`, the same for all,
so that rows of the second round are under moves of networks with all features. Takes some six
minutes of CPU time after the rows are made.

Writes build/feature_ablation.json; ``--publish`` also docs/results/feature_ablation.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from bench.compare.bounds import PROGRAMS
from bench.compare.policies import ROOT
from bench.documents.markdown import commit
from bench.documents.markdown import table as markdown_table
from bench.learned_policy.networks import EPOCHS, HIDDEN, RUNS, HeldOutNetworks, split_rows
from bench.progress import print_progress
from hmd.base.errors import HmdError
from hmd.learn.perceptron import FittedNetwork, fit_network
from hmd.learn.rows import TrainingRows
from hmd.policy.learned.features import FEATURES
from hmd.policy.learned.trust import MAX_OCTAVES

OUTPUT: Final = ROOT / "build" / "feature_ablation.json"
PUBLISHED: Final = ROOT / "docs" / "results" / "feature_ablation.json"

GROUPS: Final = {
    "memory of the sequence": ("block_next", "area_next", "similarity", "ticks"),
    "neighbours": ("block_now", "block_past", "area_now", "area_past"),
    "the page's recent samples": ("samples_1", "samples_4", "samples_16", "idle", "gap"),
    "rate and its support": ("rate", "support"),
    "tier and moves": ("slow", "wear"),
    "the process": ("density", "rate_change"),
}
"""Features by what they are about."""

_SIGMAS_MOST: Final = 5.0  # as features are trained
_LEAST: Final = 1e-9


def main() -> int:
    """Fit, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help=f"also write {PUBLISHED.name}")
    args = parser.parse_args()
    try:
        networks = HeldOutNetworks((), print_progress)
        rows = {
            name: TrainingRows.joined([networks.rows(name, n) for n in range(len(RUNS))])
            for name in PROGRAMS
        }
        found = ablations(rows)
    except HmdError as error:
        print(f"feature-ablation: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    document = {
        "command": "python -m bench.learned_policy.feature_ablation --publish",
        "commit": commit(),
        "rows": found,
    }
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.write_text(json.dumps(document, indent=1) + "\n")
    print(table(found))
    return 0


def ablations(rows: Mapping[str, TrainingRows]) -> list[dict[str, Any]]:
    """Return a row per feature and group: what is left out, and bits per miss by program."""
    left_out: dict[str, tuple[str, ...]] = {"nothing": ()}
    left_out |= GROUPS
    left_out |= {name: (name,) for name in FEATURES}
    found: list[dict[str, Any]] = []
    for label, without in left_out.items():
        bits = {name: round(held_out_bits(rows, name, without), 4) for name in rows}
        found.append({"without": label, "features": list(without), "bits": bits})
        print_progress(f"without {label}: {fmean(bits.values()):.4f} bits per miss")
    return found


def held_out_bits(rows: Mapping[str, TrainingRows], held_out: str, without: Sequence[str]) -> float:
    """Return the bits per miss of a program that a network saves that was fitted to the others."""
    unused = [FEATURES.index(name) for name in without]
    known = TrainingRows.joined([each for name, each in rows.items() if name != held_out])
    known.features[:, unused] = 0  # a copy: rows are joined
    train, test = split_rows(known)
    fitted = fit_network(train, test, HIDDEN, EPOCHS, seed=1)
    seen = rows[held_out]
    features = seen.features.copy()
    features[:, unused] = 0
    return bits_saved(fitted, features, seen)


def bits_saved(network: FittedNetwork, features: np.ndarray, rows: TrainingRows) -> float:
    """Return the gain in Poisson likelihood over ``base``, in bits per miss.

    ``features`` has shape ``(n, features)``. Predicted rates keep the sum of ``base``, as the
    policy has it.
    """
    values = (features - network.mean) / network.scale
    values = np.clip(values, -_SIGMAS_MOST, _SIGMAS_MOST)
    for number, (matrix, bias) in enumerate(network.layers):
        values = values @ matrix.T + bias
        if number < len(network.layers) - 1:
            values = np.maximum(values, 0)
    octaves = np.clip(values[:, 0].astype(np.float64), -MAX_OCTAVES, MAX_OCTAVES)
    base = rows.base.astype(np.float64)
    rate = base * np.exp2(octaves)
    octaves += np.log2(base.sum() / max(rate.sum(), _LEAST))
    return float((rows.future * octaves).sum() / max(float(rows.future.sum()), _LEAST))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return means over programs and the programs that lose most, as Markdown."""
    whole = rows[0]["bits"]
    lines = []
    for each in rows:
        lost = {name: whole[name] - bits for name, bits in each["bits"].items()}
        worst = sorted(lost, key=lambda name: -lost[name])[:3]
        lines.append(
            [
                f"`{each['without']}`" if each["without"] in FEATURES else each["without"],
                f"{fmean(each['bits'].values()):.3f}",
                ", ".join(f"{name} {lost[name]:.2f}" for name in worst if lost[name] >= 0.01),
            ]
        )
    head = ["without", "bits per miss, mean", "bits lost, by program"]
    return markdown_table(head, lines, text=1)


if __name__ == "__main__":
    sys.exit(main())
