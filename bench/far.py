# SPDX-License-Identifier: MIT
"""How much of a program's memory can be out: hmd's page-out beside the kernel's own reclaim.

    python -m bench.far [PROGRAM,...] [--idle 3,1] [--held 3] [--reclaim 0.8,0.5] [--high 0.8]
                        [--publish]

In the emulated machine, programs of the suite lie on the slow node, and their pages go to zram. hmd
pages out what was idle for so many seconds of the guest's clock, which is some seventy times slower
than modelled time; held by its default, it pages nothing out while the program waits for memory for
more than 1 % of its time, else however long that is. The kernel, with the multi-generational LRU,
keeps the program within a share of its largest memory: by ``memory.reclaim`` once per tick of hmd,
on another CPU as hmd, or by ``memory.high``, for which the program itself reclaims, and waits. Each
run is compared with one in which nothing goes out, by modelled seconds; the share that is out is
the mean of readings once a second. hmd's sampling period is fixed: idle times are shorter here by
more than memory is smaller, and at 1 % of the program's time samples would not reach all pages
within them. So that run has hmd with the same period for hmd's rows: they show what page-out costs,
not what samples cost.

``--publish`` writes docs/results/far.json; rows of programs that are not run stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from bench.compare.guest_services import Pace, running_daemon
from bench.compare.policies import SUITE
from bench.compare.testbed import FIRST_TOUCH, GROUP, Testbed, stage
from bench.documents.markdown import measured_with, table
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.base.errors import HmdError
from hmd.emulate.assets import find_kernel
from hmd.emulate.demo.measure import SLOW_NODE, service
from hmd.emulate.preset import load
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.images import load_order, warm_kernels

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results/far.json"
PRESET: Final = "dram-cxl"
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "drift": ("1048576", "262144", "2000000"),
    "phases": (),
    "index": (),
    "sqlite": (),
}
"""Programs of the suite, and their arguments where they are shorter here."""
MAX_SLOWDOWN: Final = 0.03
PERIOD: Final = 31
TICK_S: Final = 0.25
SWAP_BYTES: Final = 256 << 20
ON_SLOW: Final = ("numactl", f"--preferred={SLOW_NODE}")
"""Not bound: pages that a policy binds to a node do not go out."""
NOTHING, WATCHED = "nothing out", "nothing out, sampled"
HMD, HELD, RECLAIM, HIGH = "hmd", "hmd, held by its default", "memory.reclaim", "memory.high"

_FOLDER: Final = f"/sys/fs/cgroup{GROUP}"
_WATCH: Final = f"""
while sleep 1; do
    sed -n 's/^anon //p; s/^swapcached //p' {_FOLDER}/memory.stat
    cat {_FOLDER}/memory.swap.current
done"""


def main() -> int:
    """Run programs; print a table, and publish rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="?", default=",".join(PROGRAMS))
    parser.add_argument("--idle", default="3,1")
    parser.add_argument("--held", default="3")
    parser.add_argument("--reclaim", default="0.8,0.5")
    parser.add_argument("--high", default="0.8")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    given = {HMD: args.idle, HELD: args.held, RECLAIM: args.reclaim, HIGH: args.high}
    settings = {
        name: [float(word) for word in words.split(",") if word] for name, words in given.items()
    }
    warm_kernels()
    rows: list[dict[str, Any]] = []
    try:
        for program in args.programs.split(","):
            rows += measure(program, settings)
            if args.publish:
                publish(rows)
    except HmdError as error:
        print(f"far: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(far_table(rows))
    return 0


def measure(name: str, settings: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return the rows of a program: system, setting, share out, modelled seconds, slowdown."""
    command = prepare(load_program(name), SUITE / "inputs")
    argv = (*command.argv[:1], *PROGRAMS[name]) if PROGRAMS[name] else command.argv
    command = replace(command, argv=(*ON_SLOW, *argv))
    rows: list[dict[str, Any]] = []

    def add(bed: Testbed, system: str, setting: float | None) -> float:
        seconds, largest, out_share = _run(bed, command)
        row: dict[str, Any] = {"program": name, "system": system, "setting": setting}
        row |= {"seconds": seconds, "out_share": round(out_share, 4)}
        base = next((r for r in reversed(rows) if r["system"] in (NOTHING, WATCHED)), row)
        row |= {"slowdown": round(seconds / base["seconds"] - 1, 4)}
        rows.append(row)
        print(row, flush=True)
        return largest

    folder = ROOT / "build/far/share"
    with stage([command], folder, machine=load(PRESET)) as bed:
        _make_swap(bed)
        largest = add(bed, NOTHING, None)
        for share in settings[RECLAIM]:
            with _reclaiming(bed, int(largest * share)):
                add(bed, RECLAIM, share)
        for share in settings[HIGH]:
            with bed.having({f"{_FOLDER}/memory.high": int(largest * share)}):
                add(bed, HIGH, share)
        with running_daemon(bed, "none", Pace(TICK_S, PERIOD)) as daemon:
            add(bed, WATCHED, None)
            for system, pressure in ((HELD, None), (HMD, 1.0)):
                for idle_s in settings[system]:
                    pace = Pace(TICK_S, PERIOD, pageout_s=idle_s, pageout_pressure=pressure)
                    daemon.use("none", pace=pace)
                    with daemon.moving():
                        add(bed, system, idle_s)
    return rows


def _make_swap(bed: Testbed) -> None:
    bed.folder.mkdir(parents=True, exist_ok=True)
    for name, image in load_order(find_kernel(), ["zram"]):
        module = bed.folder / f"{name}.ko"
        module.write_bytes(image)
        bed.sh(f"busybox insmod {module}")
    bed.set({"/sys/block/zram0/disksize": SWAP_BYTES, "/sys/kernel/mm/lru_gen/enabled": "y"})
    bed.sh("busybox mkswap /dev/zram0 && busybox swapon /dev/zram0")
    bed.set({"/sys/fs/cgroup/cgroup.subtree_control": "+memory"})


@contextmanager
def _reclaiming(bed: Testbed, limit_bytes: int) -> Iterator[None]:
    """Reclaim what programs have above a limit, once per tick."""
    keep = f"""
    while sleep {TICK_S}; do
        read bytes < {_FOLDER}/memory.current
        [ $bytes -le {limit_bytes} ] || echo $((bytes - {limit_bytes})) > {_FOLDER}/memory.reclaim
    done"""
    said = bytearray()
    job = bed.machine.start(service(["sh", "-c", keep]), stdout=said.extend, stderr=said.extend)
    try:
        yield
    finally:
        job.kill()


def _run(bed: Testbed, command: Command) -> tuple[float, float, float]:
    """Return modelled seconds of a run, its largest memory in bytes, and the share that was out."""
    said = bytearray()
    watch = bed.machine.start(service(["sh", "-c", _WATCH]), stdout=said.extend, stderr=said.extend)
    try:
        with bed.modelled():
            before = bed.meter.read()
            bed.execute(command, FIRST_TOUCH)
            took = bed.meter.read().since(before)
    finally:
        watch.kill()
    numbers = [int(word) for word in said.split()]
    rows = list(zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=False))
    # A page that is in memory and in swap too, as it was read back, is not out.
    out = [swapped - both for _, both, swapped in rows]
    every = [anonymous + swapped for (anonymous, *_), swapped in zip(rows, out, strict=True)]
    share = fmean(part / max(whole, 1) for part, whole in zip(out, every, strict=True))
    return took.busy_s + took.asleep_s, max(every), share


def largest_shares(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by program and system the largest share that was out within ``MAX_SLOWDOWN``."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["setting"] is not None:
            shares = found.setdefault(row["program"], {})
            fits = row["out_share"] if row["slowdown"] <= MAX_SLOWDOWN else 0.0
            shares[row["system"]] = max(shares.get(row["system"], 0.0), fits)
    return found


def publish(rows: list[dict[str, Any]]) -> None:
    """Write rows to docs/results/far.json; those of other programs stay."""
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    new = {row["program"] for row in rows}
    kept = [row for row in document.get("rows", []) if row["program"] not in new]
    every = sorted(kept + rows, key=lambda row: list(PROGRAMS).index(row["program"]))
    document = {**measured_with(), "preset": PRESET, "max_slowdown": MAX_SLOWDOWN, "period": PERIOD}
    document |= {"out_share": largest_shares(every), "rows": every}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def far_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return by program the share out and the slowdown of each setting, as Markdown."""
    lines = []
    for row in rows:
        if row["setting"] is None:
            continue
        is_hmd, setting = row["system"] in (HMD, HELD), row["setting"]
        setting = f"idle for {setting:g} s" if is_hmd else f"within {100 * setting:.0f} %"
        figures = (f"{100 * row[name]:.1f} %" for name in ("out_share", "slowdown"))
        lines.append([row["program"], row["system"], setting, *figures])
    return table(["program", "system", "setting", "out", "slower by"], lines, text=3)


if __name__ == "__main__":
    sys.exit(main())
