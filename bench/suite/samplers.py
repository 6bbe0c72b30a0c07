"""Recall of all samplers in the emulated machine; writes build/samplers.json.

    python -m bench.suite.samplers [SECONDS]        time per sampler (60)

Prints the table of docs/reference/samplers.md. Takes about 12 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.documents.measured_commit import commit
from bench.suite.sampler_recall import Found, compare
from hmd.emulate.preset import load
from hmd.emulate.preset_overrides import with_nodes
from hmd.emulate.virtual_machine.boot import Machine
from hmd.emulate.virtual_machine.kernel_cache import guest_environment

CHECKOUT = Path(__file__).resolve().parents[2]
OUT = CHECKOUT / "build/samplers.json"
RECORDING_BYTES = 2 << 30


def main(seconds: float) -> None:
    """Boot, measure, print and write."""
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    env = {**os.environ, **guest_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    found: list[Found] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Machine(preset, share=[Path(folder)], recording_bytes=RECORDING_BYTES) as machine,
    ):
        print(HEAD)
        for one in compare(machine, Path(folder), seconds, CHECKOUT, env):
            found.append(one)
            print(line(one), flush=True)
    document = {
        "samplers": [asdict(one) for one in found],
        "commit": commit(),
        "machine": f"{platform.machine()}, {platform.release()}",
        "command": "make bench-samplers",
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")


HEAD = """\
| sampler | period | rank correlation | hot memory found | misses covered | CPU | kernel | rows |
|---|---|---|---|---|---|---|---|"""


def line(found: Found) -> str:
    """Return a row of the table."""
    cells = (
        found.sampler,
        str(found.period),
        f"{found.correlation:.2f}",
        *(f"{x:.0%}" for x in (found.hot_found, found.misses_covered)),
        *(f"{x:.0%}" for x in (found.cpu, found.kernel_cpu)),
        f"{found.rows:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
