"""The nodes that new memory is allocated from: set_mempolicy(2)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from hmd._native import ffi, lib


def bind_memory(nodes: Sequence[int]) -> None:
    """Make the calling thread and its children allocate from these nodes only.

    Raises OSError: EINVAL where one of them has no memory.
    """
    wanted = np.array(nodes, np.int32)
    result = int(lib.hmd_bind_memory(len(wanted), ffi.from_buffer("int32_t[]", wanted)))
    if result < 0:
        raise OSError(-result, os.strerror(-result))
