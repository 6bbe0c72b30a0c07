# SPDX-License-Identifier: MIT
"""Shuffling by partial exchange: workers keep a share of the samples and trade a part per epoch.

Source: Nguyen et al., "Why Globally Re-shuffle? Revisiting Data Shuffling in Large Scale Deep
Learning", IPDPS 2022. Of N samples, each of M workers stores N/M, and while it trains on them sends
a fraction Q to random workers and receives as many: it stores (1+Q)N/M at most.

Here shards trade, whose number does not depend on that of the workers. All that is random follows
from a seed, the epoch and the number of shards. Only :class:`Peers` needs PyTorch.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from hmd.base.errors import UnreachableError, UsageError, missing_extra
from hmd.torch.sample_slab import Ints, SampleSlab

_ORDER, _EXCHANGE = range(2)
"""Streams of random numbers, of each epoch and shard."""


@dataclass(frozen=True, slots=True)
class ShuffleOrder:
    """Where every sample is in every epoch, and when it is used, for any number of workers.

    Slot ``g`` is the place ``g // shards`` of the shard ``g % shards``. Position ``p`` of an epoch
    uses a sample of the shard ``p % shards``. If the number of workers divides ``shards``, worker
    ``w`` of W has slots and positions ``w, w + W, w + 2W, ...``, as of a DistributedSampler.
    Random numbers are the raw output of Philox, which no version of numpy changes.
    """

    samples: int
    shards: int
    fraction: float
    seed: int

    def samples_at(self, epoch: int) -> Ints:
        """Return the sample of each slot as an epoch begins: in the first, shards are blocks."""
        places, longer = divmod(self.samples, self.shards)
        slot = np.arange(self.samples)
        shard = slot % self.shards
        held = shard * places + np.minimum(shard, longer) + slot // self.shards
        for each in range(epoch):
            sources, targets = self.exchange(each)
            held[targets] = held[sources]
        return held

    def exchange(self, epoch: int) -> tuple[Ints, Ints]:
        """Return slots whose samples are traded during an epoch, and those that they get: the same.

        In each round, all shards send a sample and receive one, maybe their own; in the last, some.
        """
        share = self.fraction * self.samples
        rounds, rest = divmod(int((epoch + 1) * share) - int(epoch * share), self.shards)
        places, longer = divmod(self.samples, self.shards)
        bits = self._bits(_EXCHANGE, epoch, 0)
        keys = bits.random_raw((places + 1, self.shards))
        keys[places, longer:] = np.iinfo(np.uint64).max  # shards without that place
        picked = np.argsort(keys, axis=0, kind="stable")[: rounds + 1]
        picked = picked * self.shards + np.arange(self.shards)
        receivers = np.argsort(bits.random_raw((rounds, self.shards)), axis=1, kind="stable")
        # Successive shards are of different workers. Where all places are picked already, only the
        # first shards have one more.
        start = 0 if rounds == self.samples // self.shards else int(bits.random_raw())
        last = (start % self.shards + np.arange(rest)) % self.shards
        last_receivers = last[np.argsort(bits.random_raw(rest), kind="stable")]
        sources = np.concatenate([picked[:rounds].ravel(), picked[rounds, last]])
        targets = np.take_along_axis(picked[:rounds], receivers, axis=1).ravel()
        return sources, np.concatenate([targets, picked[rounds, last_receivers]])

    def slots_in_order(self, epoch: int, worker: int, workers: int) -> Ints:
        """Return the slots of a worker in the order of an epoch."""
        order = np.empty(len(range(worker, self.samples, workers)), np.int64)
        for turn, shard in enumerate(range(worker, self.shards, workers)):
            count = len(range(shard, self.samples, self.shards))
            keys = self._bits(_ORDER, epoch, shard).random_raw(count)
            places = np.argsort(keys, kind="stable")
            order[turn :: self.shards // workers] = places * self.shards + shard
        return order

    def digest(self) -> int:
        """Return a number of 62 bits that differs where the order does."""
        return int.from_bytes(blake2b(repr(self).encode(), digest_size=8).digest(), "big") >> 2

    def _bits(self, stream: int, epoch: int, shard: int) -> np.random.Philox:
        return np.random.Philox(key=self.seed, counter=[0, stream, epoch, shard])


Wait = Callable[[float], object]
"""Returns once a message is sent or received; raises RuntimeError after so many seconds."""


class Peers:
    """The workers of a run, of whom this process is number ``rank`` of ``size``.

    They are the ranks of a process group of torch.distributed that carries tensors of the CPU, as
    gloo and mpi do. Without ``group``, all ranks together make a gloo group, beside the one by
    which NCCL reduces gradients; without torch.distributed, there is one worker. At the end of an
    epoch, a peer may take ``limit_s`` to answer.
    """

    def __init__(self, group: Any = None, limit_s: float = 300) -> None:
        if find_spec("torch") is None:
            raise missing_extra("PartialExchange", "PyTorch", "torch")
        self._torch, distributed = import_module("torch"), import_module("torch.distributed")
        self.rank, self.size, self.limit_s = 0, 1, limit_s
        if distributed.is_available() and distributed.is_initialized():
            if group is None:
                limit = timedelta(seconds=limit_s)
                group = distributed.new_group(backend="gloo", timeout=limit)
            self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._group, self._distributed = group, distributed

    def send(self, data: memoryview, peer: int, tag: int) -> Wait:
        """Begin to send the bytes, which stay until the ``Wait`` has returned."""
        return self._begin(self._distributed.isend, data, group_dst=peer, tag=tag)

    def receive(self, data: memoryview, peer: int, tag: int) -> Wait:
        """Begin to receive as many bytes, of the message that the peer sent with this tag."""
        return self._begin(self._distributed.irecv, data, group_src=peer, tag=tag)

    def sum(self, values: Ints) -> Ints:
        """Return the sum over all workers, once each has called it."""
        if self.size > 1:
            with _naming(None):
                self._distributed.all_reduce(self._torch.from_numpy(values), group=self._group)
        return values

    def _begin(self, transfer: Callable[..., Any], data: memoryview, **to: int) -> Wait:
        tensor = self._torch.frombuffer(data, dtype=self._torch.uint8)
        work = transfer(tensor, group=self._group, **to)
        return lambda limit_s: work.wait(timedelta(seconds=limit_s))


@contextmanager
def _naming(peer: int | None) -> Iterator[None]:
    """Turn an error of the process group into one that names the worker; None if it may be any."""
    try:
        yield
    except RuntimeError as error:
        who = "not every worker answers" if peer is None else f"worker {peer} does not answer"
        raise UnreachableError(
            f"{who}: it has ended, or is slower than the time limit; the samples here are intact: "
            f"start all workers again from the last state ({str(error).splitlines()[0]})"
        ) from error


@dataclass(frozen=True, slots=True)
class ExchangeReport:
    """What one worker's exchange during one epoch took."""

    sent_samples: int
    sent_bytes: int
    received_bytes: int
    mapped_bytes: int
    """Memory for samples at its end, when those received are there and those sent still are."""
    blocked_s: float
    """Seconds in which training waited for it."""


class _Exchange:
    """One worker's trades during one epoch, by messages from and to slots of its slab."""

    def __init__(self, order: ShuffleOrder, epoch: int, peers: Peers, lengths: Ints) -> None:
        since = time.perf_counter()
        self.sources, self.targets = order.exchange(epoch)
        self._peers = peers
        is_sent = self.sources % peers.size == peers.rank
        is_received = self.targets % peers.size == peers.rank
        self._is_kept = is_sent & is_received
        self._is_sent = is_sent & ~self._is_kept
        self._rows = np.flatnonzero(is_sent ^ is_received)
        self._lengths = lengths[self.sources]
        received_bytes = int(self._lengths[is_received & ~self._is_kept].sum())
        self._arrivals = mmap.mmap(-1, max(received_bytes, 1))
        self._arrived_bytes = 0
        self._received: dict[int, memoryview] = {}
        self.messages: list[tuple[Wait, int]] = []
        self._blocked_s = time.perf_counter() - since

    def begin(self, share: float, slab: SampleSlab) -> None:
        """Begin messages, until this share of all is begun."""
        since = time.perf_counter()
        end = math.ceil(len(self._rows) * min(share, 1))
        for row in self._rows[len(self.messages) : end].tolist():
            source, sender = divmod(int(self.sources[row]), self._peers.size)
            target, receiver = divmod(int(self.targets[row]), self._peers.size)
            peer = receiver if self._is_sent[row] else sender
            with _naming(peer):
                if self._is_sent[row]:
                    wait = self._peers.send(slab.view(source), peer, row)
                else:
                    start = self._arrived_bytes
                    self._arrived_bytes += int(self._lengths[row])
                    data = memoryview(self._arrivals)[start : self._arrived_bytes]
                    self._received[target] = data
                    wait = self._peers.receive(data, peer, row)
            self.messages.append((wait, peer))
        self._blocked_s += time.perf_counter() - since

    def finish(self, limit_s: float, slab: SampleSlab) -> ExchangeReport:
        """Begin the rest, wait for all, and put what came into the slab."""
        self.begin(1, slab)
        since = time.perf_counter()
        for wait, peer in self.messages:
            with _naming(peer):
                wait(max(limit_s + since - time.perf_counter(), 0.001))
        self.messages.clear()
        mapped = slab.sample_bytes + len(self._arrivals)
        workers, kept = self._peers.size, self._is_kept
        slab.replace(self.sources[kept] // workers, self.targets[kept] // workers, self._received)
        sent = self._lengths[self._is_sent]
        blocked_s = self._blocked_s + time.perf_counter() - since
        return ExchangeReport(len(sent), int(sent.sum()), self._arrived_bytes, mapped, blocked_s)


class SlotSampler:
    """The slots that are left of an epoch, in its order; for a DataLoader."""

    def __init__(self, samples: PartialExchange) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples.slots())

    def __iter__(self) -> Iterator[int]:
        if not self.samples.is_iterated:
            raise UsageError("iterate over samples.batches(loader): a loader alone exchanges none")
        return map(int, self.samples.slots())


class PartialExchange:
    """A map-style dataset of this worker's share of ``dataset``, with its sampler.

    ``dataset`` is map-style and the same for all workers; each reads its share of it, once. Of the
    share, ``fraction`` (0 to 1) is traded per epoch. ``shards`` is a multiple of every number of
    workers that the run may have: by default, of this one and of 64, if that leaves 16 samples for
    each shard. With ``drop_last``, no worker uses one sample more than others. ::

        samples = PartialExchange(dataset, fraction=0.1, seed=7)
        loader = DataLoader(samples, batch_size=32, sampler=samples.sampler, num_workers=2)
        while samples.epoch < 90:
            for batch in samples.batches(loader):
                ...

    All workers construct it together, with the same arguments. It takes 12 bytes per sample of the
    whole dataset. Raises UsageError for arguments, UnreachableError where a peer does not answer.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        fraction: float,
        seed: int = 0,
        shards: int | None = None,
        drop_last: bool = False,
        peers: Peers | None = None,
        state: Mapping[str, int] | None = None,
    ) -> None:
        if not (0 <= fraction <= 1 and 0 <= seed < 2**64):
            raise UsageError("fraction is 0 to 1, seed 0 to 2^64 - 1")
        self._peers = peers or Peers()
        if shards is None:
            shards = math.lcm(self._peers.size, 64)
            shards = shards if len(dataset) >= 16 * shards else self._peers.size
        self._dataset = dataset
        self._drop_last = drop_last
        self._order = ShuffleOrder(len(dataset), int(shards), float(fraction), int(seed))
        self._exchange: _Exchange | None = None
        self.last_exchange: ExchangeReport | None = None
        """Of the last epoch that ended; None before."""
        self.epoch = 0
        """That is under way, or begins next."""
        self.is_iterated = False
        self.load_state_dict(self._state(0, 0) if state is None else state)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state, with any number of workers that divides its shards; all call it.

        Each reads the samples that it has in that epoch. Raises UsageError where the state is of
        another order, where the workers differ, and while an exchange is under way.
        """
        if self._exchange is not None and self._exchange.messages:
            raise UsageError("an exchange is under way: end the epoch first, or begin a process")
        order, workers = replace(self._order, shards=int(state["shards"])), self._peers.size
        if order.shards % workers or not workers <= order.shards <= order.samples:
            raise UsageError(
                f"{order.shards} shards for {workers} workers and {order.samples} samples: shards="
                "needs a multiple of the number of workers, not above that of samples"
            )
        if state["order"] != order.digest():
            raise UsageError("the state is of another seed, fraction or number of samples")
        marks = np.zeros(workers, np.int64)
        marks[self._peers.rank] = hash((order.digest(), state["epoch"], state["position"]))
        marks = self._peers.sum(marks)
        if (marks != marks[0]).any():
            other = np.flatnonzero(marks != marks[0])[0]
            raise UsageError(f"workers 0 and {other} have different arguments, datasets or states")
        self._order, self.epoch, self._position = order, state["epoch"], state["position"]
        self._exchange = None
        self._end = order.samples - (order.samples % workers if self._drop_last else 0)
        self._held = order.samples_at(self.epoch).astype(np.int32)
        held = self.held
        self._slab = SampleSlab((self._dataset[each] for each in held.tolist()), len(held))
        self.sampler = SlotSampler(self)
        """What a DataLoader takes as its sampler; one made before is of another state."""
        self._lengths = np.zeros(order.samples, np.int64)
        self._lengths[held] = self._slab.lengths
        self._lengths = self._peers.sum(self._lengths)

    @property
    def held(self) -> Ints:
        """The index in ``dataset`` of each slot's sample."""
        return self._held[self._peers.rank :: self._peers.size].astype(np.int64)

    def __len__(self) -> int:
        return len(self._slab)

    def __getitem__(self, slot: int) -> Any:
        return self._slab[slot]

    def __reduce__(self) -> tuple[Any, ...]:
        # The processes of a DataLoader read samples, and have no part in the exchange.
        return _same, (self._slab,)

    def slots(self) -> Ints:
        """Return the slots that this worker has yet to use in this epoch, in their order."""
        rank, workers = self._peers.rank, self._peers.size
        used = len(range(rank, min(self._position, self._end), workers))
        order = self._order.slots_in_order(self.epoch, rank, workers)
        return order[used : len(range(rank, self._end, workers))] // workers

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches that are left of this epoch, while samples are exchanged.

        ``loader`` is a DataLoader with ``sampler``, over this dataset or one that wraps it. At the
        end, samples received take the slots of those sent. The next call begins the next epoch; if
        the caller stopped before the end, it goes on with this one.
        """
        if loader.sampler is not self.sampler:
            raise UsageError("the loader needs sampler=samples.sampler, that of the last state")
        if loader.batch_size is None and loader.batch_sampler is not None:
            raise UsageError("the loader has a batch sampler: give it batch_size and sampler")
        batch_samples = loader.batch_size or 1
        if self._exchange is None:
            lengths = self._lengths[self._held]
            self._exchange = _Exchange(self._order, self.epoch, self._peers, lengths)
        exchange = self._exchange
        # The same for all workers, and taken by each: all messages are begun before one waits.
        steps = (self._order.samples - self._position) // self._peers.size // batch_samples
        self.is_iterated = True
        try:
            for step, batch in enumerate(loader, 1):
                exchange.begin(step / max(steps, 1), self._slab)
                self._position += batch_samples * self._peers.size
                yield batch
        finally:
            self.is_iterated = False
        self.last_exchange = exchange.finish(self._peers.limit_s, self._slab)
        self._held[exchange.targets] = self._held[exchange.sources]
        self.epoch, self._position, self._exchange = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, int]:
        """Return where the run is, after the batch that ``batches`` yielded last: four numbers.

        They are the same on all workers, whatever a DataLoader has fetched ahead: ``epoch``,
        ``position`` (samples of it that all workers together have used), ``shards``, and ``order``,
        a digest of seed, fraction and the numbers of samples and shards.
        """
        is_over = self._position >= self._end
        return self._state(self.epoch + is_over, 0 if is_over else self._position)

    def _state(self, epoch: int, position: int) -> dict[str, int]:
        shards, order = self._order.shards, self._order.digest()
        return {"epoch": epoch, "position": position, "shards": shards, "order": order}


def _same(slab: SampleSlab) -> SampleSlab:
    return slab
