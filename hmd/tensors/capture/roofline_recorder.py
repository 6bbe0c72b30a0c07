"""A dispatch recorder for tensors without data: kernels take the time of a roofline model.

Williams et al., "Roofline" (CACM 2009): a kernel takes as long as its floating-point operations at
the processor's rate, or its operands at the memory's bandwidth, whichever is longer. Operations are
counted by the formulas of :mod:`torch.utils.flop_counter`; what these do not cover is bound by
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.flop_counter import flop_registry

from hmd.tensors.capture.dispatch_recorder import DispatchRecorder
from hmd.tensors.capture.storage_table import StorageTable, tensors_in


@dataclass(frozen=True, slots=True)
class Roofline:
    """A processor: 10^12 floating-point operations, and 10^9 bytes of its memory, per second."""

    tflops: float = 19.5
    gbps: float = 1555.0

    def nanoseconds(self, operations: float, size: float) -> int:
        """Return the time of a kernel with so many operations and bytes of operands, 1 or more."""
        return max(round(operations / self.tflops / 1e3), round(size / self.gbps), 1)


class RooflineRecorder(DispatchRecorder):
    """Records operations with the times of a model, not those that they take here."""

    def __init__(self, storages: StorageTable, roofline: Roofline) -> None:
        super().__init__(storages)
        self._roofline = roofline

    def timed(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, int]:
        """Return an operator's result and its modelled time in nanoseconds."""
        result = func(*args, **kwargs)
        size = sum(
            each.numel() * each.element_size() for each in tensors_in((args, kwargs, result))
        )
        count = flop_registry.get(func.overloadpacket)
        operations = count(*args, **kwargs, out_val=result) if count else 0
        return result, self._roofline.nanoseconds(operations, size)
