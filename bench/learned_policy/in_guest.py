# SPDX-License-Identifier: MIT
"""The learned policy in the emulated machine, on programs that its training never saw.

    python -m bench.learned_policy.in_guest [PROGRAM:RATIO,...] [--publish]

Takes programs and ratios of the comparison (:mod:`bench.compare.policies`); runs each in the guest
under ``learned``, with the network that was fitted to all other programs
(:mod:`bench.learned_policy.networks`). Prints the runtimes next to those of the committed
comparison, and writes build/learned_guest.json; ``--publish`` also writes
docs/results/learned.json. Results are stored in build/learned/guest, so that an interrupted command
continues; a case takes two minutes on two idle CPUs, and the networks what ``python -m
bench.learned_policy.held_out --ship`` takes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.compare.campaign import CampaignResults, run_cases
from bench.compare.comparison_case import ComparisonCase, results
from bench.compare.policies import COMMITTED, ROOT, SUITE
from bench.compare.systems import DAMON, FIRST, HMD_DEFAULT, KERNEL, hmd_with
from bench.documents.markdown import commit
from bench.documents.markdown import table as markdown
from bench.learned_policy.held_out import PUBLISHED
from bench.learned_policy.networks import FOLDER, HeldOutNetworks
from bench.progress import print_progress
from hmd.base.errors import HmdError

OUTPUT = ROOT / "build" / "learned_guest.json"
GUEST = FOLDER / "guest"
LEARNED: Final = hmd_with("learned").name
PEERS: Final = (FIRST.name, KERNEL.name, DAMON.name)
CASES: Final = (
    "betweenness:1:2", "cg:1:2", "drift:1:2", "index:1:8", "pagerank:1:8", "updates_moving:1:8",
)  # fmt: skip
"""Three cases of either ratio, with hot sets that stay and that move."""


def main() -> int:
    """Run the requested cases; print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="?", default=",".join(CASES), help="PROGRAM:RATIO,... (six by default)"
    )
    parser.add_argument("--publish", action="store_true", help=f"also update {PUBLISHED.name}")
    args = parser.parse_args()
    try:
        cases = [ComparisonCase.parse(f"{text}:{LEARNED}") for text in args.cases.split(",")]
        networks = HeldOutNetworks(print_progress)
        outcomes = run_cases(
            cases,
            SUITE / "inputs",
            GUEST,
            print_progress,
            commit=commit(),
            most_runs=1,
            settings={
                program: {"weights": _weights(networks, program)}
                for program in sorted({case.program for case in cases})
            },
        )
    except HmdError as error:
        print(f"learned_guest: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    found = rows(cases, outcomes)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    if args.publish:
        published = json.loads(PUBLISHED.read_text())
        PUBLISHED.write_text(json.dumps({**published, "guest": found}, indent=1) + "\n")
    print(table(found))
    return 1 if outcomes.failed else 0


def rows(cases: Sequence[ComparisonCase], outcomes: CampaignResults) -> list[dict[str, Any]]:
    """Return the cases that ran, with modelled seconds by system.

    Those of other systems are the committed comparison's.
    """
    others = results(json.loads(COMMITTED.read_text())["cases"])
    found = []
    for case in cases:
        if case not in outcomes.results:
            continue
        trial = outcomes.results[case].trial
        named = {
            name: others[known].trial.modelled_seconds
            for name in (*PEERS, HMD_DEFAULT)
            if (known := ComparisonCase(case.program, case.ratio, name)) in others
        }
        found.append(
            {
                "program": case.program,
                "ratio": case.ratio,
                "seconds": {**named, LEARNED: trial.modelled_seconds},
                "moved_mib": trial.migrated_bytes >> 20,
                "commit": outcomes.results[case].commit,
            }
        )
    return found


def vs_best_peer(row: Mapping[str, Any], system: str = LEARNED) -> float:
    """Return the runtime of the best peer over that of a system, by default ``learned``."""
    seconds = row["seconds"]
    return float(min(seconds[name] for name in PEERS if name in seconds) / seconds[system])


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table: modelled seconds, and the best peer's over ours."""
    systems = (*PEERS, HMD_DEFAULT, LEARNED)
    return markdown(
        ["program", "ratio", *systems, "times the best peer"],
        [
            [
                row["program"],
                row["ratio"],
                *(f"{row['seconds'][s]:.3f}" if s in row["seconds"] else "" for s in systems),
                f"{vs_best_peer(row):.2f}",
            ]
            for row in found
        ],
        text=2,
    )


def _weights(networks: HeldOutNetworks, program: str) -> str:
    """Return the path of a program's network, named by its content, of which results are."""
    data = networks.network(program).read_bytes()
    path = GUEST / f"{program}-{hashlib.sha256(data).hexdigest()[:12]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
