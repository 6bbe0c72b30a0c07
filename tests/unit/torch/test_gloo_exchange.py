# SPDX-License-Identifier: MIT
"""Partial exchange between real processes, with real DataLoaders; skipped without PyTorch.

Eight processes run the cases one after the other, and write down what they saw.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch
from torch import distributed
from torch.utils.data import DataLoader

from hmd.base.errors import HmdError
from hmd.torch.shuffle import PartialExchange, Peers

PROCESSES = 8
LIMIT_S = 3


class Samples:
    """Number and tensor of a length that differs, whose values are the number's."""

    def __len__(self) -> int:
        return 203

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, torch.full((1 + index % 7,), index % 251)


def collate(samples: list[tuple[int, Any]]) -> list[int]:
    for number, values in samples:
        assert values.tolist() == [number % 251] * (1 + number % 7)
    return [number for number, _ in samples]


def exchange(peers: Peers, **arguments: Any) -> PartialExchange:
    return PartialExchange(Samples(), fraction=0.3, seed=3, peers=peers, **arguments)


def loader_of(samples: PartialExchange, **arguments: Any) -> Any:
    return DataLoader(
        samples,  # type: ignore[arg-type, unused-ignore]
        batch_size=4,
        sampler=samples.sampler,  # type: ignore[arg-type, unused-ignore]
        collate_fn=collate,
        **arguments,
    )


def epochs(peers: Peers) -> Any:
    samples = exchange(peers)
    loader = loader_of(samples)
    return [list(chain.from_iterable(samples.batches(loader))) for _ in range(10)]


def before_resuming(peers: Peers) -> Any:
    samples = exchange(peers, shards=8)
    loader = loader_of(samples)
    used = [list(chain.from_iterable(samples.batches(loader))) for _ in range(2)]
    begun = list(chain.from_iterable(islice(samples.batches(loader), 3)))
    return {"used": [*used, begun], "state": samples.state_dict()}


def after_resuming(peers: Peers, state: dict[str, int]) -> Any:
    samples = exchange(peers, state=state)
    loader = loader_of(samples)
    return [list(chain.from_iterable(samples.batches(loader))) for _ in range(2)]


def by_processes(peers: Peers, method: str) -> Any:
    """Run two epochs, left once in the middle, whose loaders fetch far ahead."""
    samples = exchange(peers)
    loader = loader_of(
        samples,
        num_workers=2,
        prefetch_factor=8,
        multiprocessing_context=method,
        persistent_workers=method == "fork",
    )
    begun = list(chain.from_iterable(islice(samples.batches(loader), 3)))
    position = samples.state_dict()["position"]
    ended = list(chain.from_iterable(samples.batches(loader)))
    second = list(chain.from_iterable(samples.batches(loader)))
    return {"used": [begun + ended, second], "begun": len(begun), "position": position}


def failing(peers: Peers, fails: Callable[[], None]) -> Any:
    """Let the last worker fail in the middle of an epoch; return what the others see."""
    samples = exchange(peers)
    loader = loader_of(samples)
    since, error = 0.0, "none"
    try:
        for epoch in range(5):  # in one epoch, a worker may have nothing for the one that fails
            for step, _ in enumerate(samples.batches(loader)):
                if (epoch, step) == (0, 1):
                    since = time.monotonic()
                    if peers.rank == peers.size - 1:
                        fails()
    except HmdError as raised:
        error = str(raised)
    numbers = [samples[slot][0] for slot in range(len(samples))]
    kept = numbers == samples.held.tolist()
    return {"error": error, "seconds": time.monotonic() - since, "kept": kept}


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES
    )
    found: dict[str, Any] = {}
    groups = {}
    for size in (2, 3, 5, PROCESSES):
        groups[size] = distributed.new_group(list(range(size)))
    slow = distributed.new_group([0, 1], timeout=timedelta(seconds=LIMIT_S))
    for size, group in groups.items():
        if rank < size:
            found[f"epochs {size}"] = epochs(Peers(group))
    found["before"] = before_resuming(Peers(groups[PROCESSES]))
    if rank < 2:
        found["after"] = after_resuming(Peers(groups[2]), found["before"]["state"])
        found["fork"] = by_processes(Peers(groups[2]), "fork")
        found["spawn"] = by_processes(Peers(groups[2]), "spawn")
        found["lag"] = lagging(Peers(slow, LIMIT_S))
    distributed.barrier()
    found["death"] = failing(Peers(limit_s=20), lambda: finish(folder, rank, found))
    finish(folder, rank, found)


def lagging(peers: Peers) -> Any:
    return failing(peers, lambda: time.sleep(3 * LIMIT_S))


def finish(folder: Path, rank: int, found: dict[str, Any]) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    root = Path(__file__).parents[3]
    words = [sys.executable, "-W", "error", "-m", "tests.unit.torch.test_gloo_exchange"]
    processes = [
        subprocess.Popen([*words, str(rank), str(folder)], cwd=root) for rank in range(PROCESSES)
    ]
    assert [each.wait(280) for each in processes] == [0] * PROCESSES
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


def together(found: list[dict[str, Any]], name: str) -> list[list[int]]:
    """Return the samples that all processes used in each epoch."""
    parts = [each[name] for each in found if name in each]
    parts = [part["used"] if isinstance(part, dict) else part for part in parts]
    return [sorted(chain.from_iterable(epoch)) for epoch in zip(*parts, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_each_sample_is_used_once_per_epoch(found: list[dict[str, Any]], size: int) -> None:
    assert together(found, f"epochs {size}") == [list(range(203))] * 10


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_a_loader_read_what_was_exchanged(
    found: list[dict[str, Any]], method: str
) -> None:
    assert together(found, method) == [list(range(203))] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_state_does_not_count_what_a_loader_fetched_ahead(
    found: list[dict[str, Any]], method: str
) -> None:
    for rank in range(2):
        assert found[rank][method]["begun"] == 12
        assert found[rank][method]["position"] == 24


def test_two_processes_go_on_where_eight_were_in_mid_epoch(found: list[dict[str, Any]]) -> None:
    assert all(each["before"]["state"] == found[0]["before"]["state"] for each in found)
    *whole, begun = together(found, "before")
    ended, following = together(found, "after")
    assert whole == [list(range(203))] * 2
    assert len(begun) == 8 * 12
    assert sorted(begun + ended) == following == list(range(203))


def test_peer_that_lags_is_an_error_within_the_limit_and_loses_nothing(
    found: list[dict[str, Any]],
) -> None:
    lag = found[0]["lag"]
    assert "worker 1 does not answer" in lag["error"]
    assert lag["seconds"] < 3 * LIMIT_S
    assert lag["kept"]


def test_peer_that_dies_is_an_error_for_all_within_the_limit(found: list[dict[str, Any]]) -> None:
    for each in found[:-1]:
        assert "does not answer" in each["death"]["error"]
        assert each["death"]["seconds"] < 20
        assert each["death"]["kept"]
    assert "death" not in found[-1]


if __name__ == "__main__":
    process(int(sys.argv[1]), Path(sys.argv[2]))
