"""Figures of documents that docs/results/*.json have only in parts: means over some cases, sleep.

Takes the results by the name of their file, gives further ones by a name of their own;
:mod:`bench.documents.figures` places them: ``{comparison[over_damon][1:2]:.2f}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.compare.comparison_case import RATIOS
from bench.compare.figures import geomean
from bench.compare.systems import HMD_DEFAULT
from bench.learned_policy.in_guest import LEARNED, vs_best_peer
from bench.learned_policy.summary import BOUNDS
from hmd.decide import registry

_DAMON: Final = "damon"


def derived(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the derived results, as far as the files that they are made of are there."""
    made: dict[str, Any] = {}
    if "policies" in results:
        made["comparison"] = comparison(results["policies"])
    if rows := results.get("learned", {}).get("guest"):
        made["learned_guest"] = learned_guest(rows)
    if cases := results.get("learned", {}).get("heldout"):
        made["bounds_left"] = bounds_left(cases)
    return made


def bounds_left(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return by bound and ratio the speed of what knows accesses exactly over the default policy's.

    Simulated; geometric means over the programs.
    """
    return {
        bound: {
            ratio: geomean(
                case["seconds"][registry.DEFAULT] / case["seconds"][bound]
                for case in cases
                if case["ratio"] == ratio and bound in case["seconds"]
            )
            for ratio in RATIOS
        }
        for bound in BOUNDS
    }


def learned_guest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the runtime of the best peer over that of ``learned``, and of hmd's default policy.

    Geometric means over the programs that were held out, in the emulated machine.
    """
    return {
        "over_best_peer": geomean(vs_best_peer(row, LEARNED) for row in rows),
        "default_over_best_peer": geomean(vs_best_peer(row, HMD_DEFAULT) for row in rows),
    }


def comparison(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures of the comparison with other systems, by modelled time.

    By ratio and over the programs that ran under both: ``over_damon`` is DAMON's runtime over that
    of the default policy, the geometric mean; ``damon_bytes`` what it moves, over what that moves;
    ``damon_ahead`` the number of programs that are faster under DAMON. ``most_asleep`` is by system
    the largest share of its time that a program slept, of the cases in which it is known.
    """
    found: dict[str, Any] = {"over_damon": {}, "damon_bytes": {}, "damon_ahead": {}}
    for ratio in document["ratios"]:
        ours = _of(document, ratio, document["default"])
        both = [(case, ours[p]) for p, case in _of(document, ratio, _DAMON).items() if p in ours]
        if not both:
            continue
        speeds = [theirs["modelled_seconds"] / case["modelled_seconds"] for theirs, case in both]
        found["over_damon"][ratio] = math.exp(sum(map(math.log, speeds)) / len(speeds))
        found["damon_ahead"][ratio] = sum(speed < 1 for speed in speeds)
        moved = [sum(pair[side]["migrated_bytes"] for pair in both) for side in (0, 1)]
        if moved[1]:
            found["damon_bytes"][ratio] = moved[0] / moved[1]
    found["most_asleep"] = {}
    for case in document["cases"]:
        if case.get("asleep_seconds") is not None:
            share = case["asleep_seconds"] / case["modelled_seconds"]
            most = found["most_asleep"].get(case["system"], 0.0)
            found["most_asleep"][case["system"]] = max(most, share)
    return found


def _of(document: Mapping[str, Any], ratio: str, system: str) -> dict[str, Any]:
    """Return the cases of a system at a ratio, by program."""
    return {
        case["program"]: case
        for case in document["cases"]
        if (case["ratio"], case["system"]) == (ratio, system)
    }
