"""Runtimes of the static oracle: the best placement found that never changes.

By replay of each program's miss recording, with as much fast memory as its cases have. A recording
takes a minute or two, unless the estimator's bench made it. Results are stored by digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.compare.compared_program import can_be_simulated
from bench.compare.comparison_case import ComparisonCase
from bench.compare.comparison_trial import ComparisonTrial
from bench.compare.systems import FIRST
from bench.compare.testbed import PRESET
from bench.suite.ground_truth import program_digest, recorded
from hmd.emulate.preset import load
from hmd.simulate import baselines as of_recording
from hmd.units import PAGE_BYTES

ORACLE = "oracle"


def oracle_seconds(
    trials: Mapping[ComparisonCase, ComparisonTrial],
    suite: Path,
    folder: Path,
    say: Callable[[str], None],
) -> dict[ComparisonCase, float]:
    """Return the oracle's runtime for each program and ratio with a first-touch trial.

    Programs that cannot be simulated have none.
    """
    found = {}
    for case, trial in sorted(trials.items(), key=lambda item: item[0]):
        if case.system == FIRST.name and can_be_simulated(case.program):
            pages = trial.fast_bytes // PAGE_BYTES
            oracle = ComparisonCase(case.program, case.ratio, ORACLE)
            found[oracle] = _seconds(case.program, pages, suite, folder, say)
    return found


def _seconds(name: str, pages: int, suite: Path, folder: Path, say: Callable[[str], None]) -> float:
    sources = Path(of_recording.__file__).read_bytes() + load(PRESET).model_dump_json().encode()
    digest = hashlib.sha256(sources).hexdigest()[:12]
    path = folder / "oracle" / f"{name}-{program_digest(name)}-{pages}-{digest}.json"
    if not path.exists():
        say(f"{name}: the best of placements with {pages:,} pages fast")
        stream = recorded(name, suite, say).stream
        runtime = of_recording.baselines(stream, load(PRESET), pages)["oracle"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(runtime))
    return float(json.loads(path.read_text()))
