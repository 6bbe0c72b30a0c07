"""Identities of PyTorch storages: numbers that no later storage gets, at whatever address.

Addresses are reused after a free. A weak reference keeps the storage's header, so that the header's
address identifies it for as long as the table exists. It also shows whether the storage exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree


class StorageTable:
    """Storages in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._sizes: list[int] = []
        self._devices: list[str] = []

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return a tensor's storage; None of a tensor without one, or without bytes."""
        try:
            storage = tensor.untyped_storage()
            size = int(storage.nbytes())
        except (NotImplementedError, RuntimeError):
            # Sparse and opaque tensors have no storage of their own.
            return None
        if not size:
            return None
        reference = StorageWeakRef(storage)
        number = self._numbers.get(reference.cdata)
        if number is None:
            number = len(self._references)
            self._numbers[reference.cdata] = number
            self._references.append(reference)
            self._sizes.append(size)
            self._devices.append(str(tensor.device))
        self._sizes[number] = max(self._sizes[number], size)
        return number

    def numbers(self, values: object) -> Iterator[int]:
        """Yield the storages of the tensors in nested lists, tuples and dictionaries."""
        for tensor in tensors_in(values):
            number = self.number(tensor)
            if number is not None:
                yield number

    def size(self, number: int) -> int:
        """Return the most bytes that a storage had."""
        return self._sizes[number]

    def device(self, number: int) -> str:
        """Return the device of a storage, as ``cuda:0``."""
        return self._devices[number]

    def exists(self, number: int) -> bool:
        """Return whether anything still refers to a storage."""
        return not self._references[number].expired()


def tensors_in(values: object) -> Iterable[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return (each for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor))


def touched_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the byte after its last."""
    if not tensor.numel():
        return 0, 0
    item, offset = tensor.element_size(), int(tensor.storage_offset())
    last = sum(
        (int(size) - 1) * int(stride)
        for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return offset * item, (offset + last + 1) * item
