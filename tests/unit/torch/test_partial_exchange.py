# SPDX-License-Identifier: MIT
"""Shuffling by partial exchange, with workers of one process; PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.shuffle.simulated_workers import (
    ArrayLoader,
    SimulatedGroup,
    SimulatedPeers,
    epochs_in_step,
)
from hmd.base.errors import UnreachableError, UsageError
from hmd.torch.shuffle import PartialExchange, Peers, ShuffleOrder

Slots = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class NumberedSamples:
    """Each sample is its number, and bytes that tell it from others, of lengths that differ."""

    count: int
    lengths: int = 50

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        return index.to_bytes(4, "big"), bytes([index % 251]) * (index * 7 % self.lengths + 1)


def workers_of(
    size: int,
    samples: int = 96,
    fraction: float = 0.3,
    shards: int = 12,
    state: Mapping[str, int] | None = None,
    drop_last: bool = False,
    lengths: int = 50,
) -> list[PartialExchange]:
    dataset = NumberedSamples(samples, lengths)

    def make(peers: Peers) -> PartialExchange:
        return PartialExchange(
            dataset,
            fraction=fraction,
            seed=7,
            shards=shards,
            peers=peers,
            state=state,
            drop_last=drop_last,
        )

    return SimulatedGroup(size).workers(make)


def numbers(worker: PartialExchange, slots: list[int] | None) -> list[int]:
    found = [worker[slot] for slot in slots or []]
    numbers = [int.from_bytes(number, "big") for number, _ in found]
    for number, (_, content) in zip(numbers, found, strict=True):
        assert content == bytes([number % 251]) * len(content)
    return numbers


def used_in_epoch(workers: list[PartialExchange], batch: int = 4) -> list[list[int]]:
    """Return the samples that each step of the rest of an epoch uses, those of all workers."""
    return steps_of(workers, 10**9, batch)


def steps_of(workers: list[PartialExchange], steps: int, batch: int) -> list[list[int]]:
    """Return what so many steps use, in the middle of an epoch that goes on later."""
    return [
        joined(numbers(worker, slots) for worker, slots in zip(workers, step, strict=True))
        for step in islice(epochs_in_step(workers, batch), steps)
    ]


def joined(parts: Iterable[list[int]]) -> list[int]:
    return sorted(chain.from_iterable(parts))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    size=st.integers(2, 64),
    shards_per_worker=st.integers(1, 3),
    extra=st.integers(0, 150),
    fraction=st.sampled_from([0, 0.01, 0.1, 0.3, 1]),
    batch=st.integers(1, 9),
)
@example(size=64, shards_per_worker=1, extra=70, fraction=0.3, batch=2)
def test_each_sample_is_used_once_per_epoch_for_100_epochs(
    size: int, shards_per_worker: int, extra: int, fraction: float, batch: int
) -> None:
    shards = size * shards_per_worker
    workers = workers_of(size, shards + extra, fraction, shards)
    every = list(range(shards + extra))
    for epoch in range(100):
        used = used_in_epoch(workers, batch)
        assert joined(used) == every, epoch
        assert sorted(np.concatenate([worker.held for worker in workers])) == every
    assert workers[0].epoch == 100


def test_samples_lie_where_the_order_says() -> None:
    workers = workers_of(4, shards=4)
    for _ in range(5):
        used_in_epoch(workers)
    for rank, worker in enumerate(workers):
        assert numbers(worker, list(range(len(worker)))) == worker.held.tolist()
        expected = ShuffleOrder(96, 4, 0.3, 7).samples_at(5)[rank::4]
        assert worker.held.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 6, 12])
def test_global_batches_are_the_same_for_any_number_of_workers(size: int) -> None:
    one, several = workers_of(1, 97), workers_of(size, 97)
    for _ in range(3):
        assert used_in_epoch(several, 12 // size) == used_in_epoch(one, 12)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_run_goes_on_in_mid_epoch_with_other_workers_from_four_numbers(size: int) -> None:
    undisturbed = workers_of(1, 97)
    expected = [used_in_epoch(undisturbed, 12) for _ in range(6)]
    before = workers_of(4, 97)
    for epoch in range(2):
        assert used_in_epoch(before, 3) == expected[epoch]
    assert steps_of(before, 3, 3) == expected[2][:3]
    states = [worker.state_dict() for worker in before]
    assert all(state == states[0] for state in states)
    assert sorted(states[0]) == ["epoch", "order", "position", "shards"]
    after = workers_of(size, 97, state=states[0])
    assert used_in_epoch(after, 12 // size) == expected[2][3:]
    # The epoch after a resumed one is another one, and the one that would have come.
    assert [used_in_epoch(after, 12 // size) for _ in range(3)] == expected[3:]
    assert expected[2] != expected[3]


def test_run_goes_on_twice_from_a_position_that_no_row_of_workers_ends_at() -> None:
    used = steps_of(first := workers_of(2, 97), 5, 1)
    used += steps_of(second := workers_of(12, 97, state=first[0].state_dict()), 2, 2)
    used += used_in_epoch(workers_of(4, 97, state=second[0].state_dict()))
    assert joined(used) == list(range(97))


def test_state_counts_what_was_used_and_not_what_a_loader_drew() -> None:
    worker = workers_of(1)[0]
    loader = ArrayLoader(worker.sampler, 10)  # draws all slots before it yields the first
    used = [numbers(worker, slots) for slots in islice(worker.batches(loader), 2)]
    assert worker.state_dict()["position"] == 20
    rest = used_in_epoch(workers_of(1, state=worker.state_dict()), 10)
    assert joined([*used, *rest]) == list(range(96))


def test_state_of_a_finished_epoch_begins_the_next() -> None:
    worker = workers_of(1)[0]
    for last in worker.batches(ArrayLoader(worker.sampler, 10)):
        if len(last) == 6:
            state = worker.state_dict()  # after the last batch, before the exchange is over
    assert (state["epoch"], state["position"]) == (1, 0)
    assert worker.state_dict() == state
    assert used_in_epoch(workers_of(1, state=state)) == used_in_epoch([worker])


def test_epoch_that_is_left_early_goes_on_with_the_next_call() -> None:
    workers = workers_of(3)
    first = steps_of(workers, 3, 4)
    assert workers[0].epoch == 0
    assert joined([*first, *used_in_epoch(workers)]) == list(range(96))
    assert workers[0].epoch == 1
    assert joined(used_in_epoch(workers)) == list(range(96))


def test_all_workers_use_as_many_samples_with_drop_last() -> None:
    workers = workers_of(4, 99, drop_last=True)
    for _ in range(3):
        steps = list(epochs_in_step(workers, 5))
        used = [sum(len(step[rank] or []) for step in steps) for rank in range(4)]
        assert used == [24] * 4
    assert workers[0].epoch == 3


@pytest.mark.parametrize("fraction", [0, 0.1, 0.3, 1])
def test_storage_is_a_share_and_what_arrives(fraction: float) -> None:
    workers = workers_of(4, 400, fraction, 4, lengths=1)
    share = workers[0].held.size * len(bytes(workers[0]._slab.view(0)))
    for _ in range(10):
        used_in_epoch(workers, 20)
        for worker in workers:
            report = worker.last_exchange
            assert report is not None
            assert report.mapped_bytes <= share * (1 + fraction) + 1
            assert report.received_bytes == report.sent_bytes <= share * fraction


def test_samples_of_unequal_length_take_no_more_memory_than_they_have_bytes() -> None:
    workers = workers_of(3, 300, lengths=200)
    for _ in range(10):
        used_in_epoch(workers)
        for worker in workers:
            assert worker._slab.sample_bytes == worker._slab.lengths.sum()


def test_arguments_that_do_not_go_together_are_errors() -> None:
    with pytest.raises(UsageError, match="multiple of the number of workers"):
        workers_of(5, shards=12)
    with pytest.raises(UsageError, match="not above that of samples"):
        workers_of(2, samples=10, shards=12)
    with pytest.raises(UsageError, match="fraction is 0 to 1"):
        workers_of(2, fraction=1.5)
    state = workers_of(1)[0].state_dict()
    with pytest.raises(UsageError, match="another seed, fraction or number of samples"):
        workers_of(2, fraction=0.2, state=state)


def test_workers_with_different_seeds_are_an_error() -> None:
    def make(peers: Peers) -> PartialExchange:
        seed = 3 if peers.rank == 1 else 2
        return PartialExchange(NumberedSamples(50), fraction=0.1, seed=seed, shards=4, peers=peers)

    with pytest.raises(UsageError, match="workers 0 and 1 have different arguments"):
        SimulatedGroup(4).workers(make)


def test_loader_without_the_sampler_or_without_batches_is_an_error() -> None:
    worker = workers_of(1)[0]
    with pytest.raises(UsageError, match=r"iterate over samples\.batches"):
        list(ArrayLoader(worker.sampler, 4))
    with pytest.raises(UsageError, match="batch sampler"):
        next(worker.batches(ArrayLoader(worker.sampler, None, [[0]])))
    old = ArrayLoader(worker.sampler, 4)
    worker.load_state_dict(worker.state_dict() | {"epoch": 2})
    with pytest.raises(UsageError, match=r"sampler=samples\.sampler"):
        next(worker.batches(old))


def test_default_number_of_shards_suits_64_workers_where_samples_suffice() -> None:
    def shards(samples: int, size: int) -> int:
        peers = [SimulatedPeers(SimulatedGroup(1), 0)]
        peers[0].size = size
        peers[0].sum = lambda values: np.full_like(values, values[0])  # type: ignore[method-assign]
        found = PartialExchange(NumberedSamples(samples), fraction=0, peers=peers[0])
        return found.state_dict()["shards"]

    assert shards(1024, 8) == 64
    assert shards(1023, 8) == 8
    assert shards(10_000, 6) == 192


def test_message_that_does_not_come_leaves_samples_and_state() -> None:
    workers = workers_of(2, shards=2)
    before = [numbers(worker, list(range(len(worker)))) for worker in workers]
    alone = workers[0]
    with pytest.raises(UnreachableError, match="worker 1 does not answer"):
        for _ in alone.batches(ArrayLoader(alone.sampler, 4)):
            pass
    assert numbers(alone, list(range(len(alone)))) == before[0]
    with pytest.raises(UsageError, match="under way"):
        alone.load_state_dict(alone.state_dict())
    # From its state, all workers go on as if nothing had failed.
    resumed = workers_of(2, shards=2, state=alone.state_dict())
    used_in_epoch(undisturbed := workers_of(2, shards=2))
    assert used_in_epoch(resumed) == used_in_epoch(undisturbed)


def test_order_is_the_same_on_every_machine_and_version_of_numpy() -> None:
    order = ShuffleOrder(11, 3, 0.5, 1)
    assert order.slots_in_order(0, 0, 1).tolist() == [9, 1, 2, 6, 7, 8, 0, 10, 5, 3, 4]
    sources, targets = order.exchange(1)
    assert sources.tolist() == [3, 1, 5, 6, 10, 8]
    assert targets.tolist() == [3, 5, 1, 8, 10, 6]
    assert order.digest() == 2366798865824515523


def mixing(fraction: float, epochs: int = 12, samples: int = 4096, size: int = 16) -> Slots:
    """Return the position of each sample (columns) in each epoch (rows)."""
    order = ShuffleOrder(samples, size, fraction, 5)
    positions = np.empty((epochs, samples), np.int64)
    for epoch in range(epochs):
        held = order.samples_at(epoch)
        for worker in range(size):
            used = held[order.slots_in_order(epoch, worker, size)]
            positions[epoch, used] = np.arange(len(used)) * size + worker
    return positions


@pytest.mark.parametrize("fraction", [0, 0.1, 1])
def test_positions_are_those_of_a_shuffle_in_every_epoch(fraction: float) -> None:
    positions = mixing(fraction)
    for row in positions:
        assert sorted(row) == list(range(positions.shape[1]))
    # Of a global shuffle, positions of one sample in two epochs do not correlate, nor do those of
    # neighbours in one epoch; 4096 samples make a correlation of 0.08 a matter of 5 sigma.
    steps = positions // 16
    for first, second in pairwise(steps):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
        assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.08
    counts = np.bincount((steps // 16).ravel(), minlength=16)
    expected = steps.size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 15 degrees: p = 1e-4


@pytest.mark.parametrize("fraction", [0, 0.1, 0.3, 1])
def test_samples_leave_their_worker_as_a_random_walk_says(fraction: float) -> None:
    workers = mixing(fraction) % 16
    for epoch, row in enumerate(workers):
        stays = float((row == workers[0]).mean())
        # A traded sample goes to each of 16 workers alike: as after a global shuffle where Q is 1.
        expected = 1 / 16 + (1 - 1 / 16) * (1 - fraction) ** epoch
        assert stays == pytest.approx(expected, abs=0.04), epoch
