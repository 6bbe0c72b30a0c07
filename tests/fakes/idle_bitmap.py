# SPDX-License-Identifier: MIT
"""The bitmap of idle page tracking where the kernel has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmd.sample.idle_pages import KernelBitmap


class IdleBitmap(KernelBitmap):
    """The bitmap of idle page tracking, where the kernel has none; frames that are idle."""

    def __init__(self) -> None:
        self.idle: set[int] = set()
        self.untracked: set[int] = set()
        """Frames that take no mark, as those of a huge page but the first."""

    def read(self, word: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return words."""
        numbers = range(word, word + count)
        bits = [sum(1 << i for i in range(64) if n * 64 + i in self.idle) for n in numbers]
        return np.array(bits, np.uint64)

    def mark(self, word: int, words: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        """Mark frames as idle; bits that are 0 change nothing."""
        for n, bits in enumerate(words.tolist(), word):
            self.idle |= {n * 64 + i for i in range(64) if bits >> i & 1} - self.untracked

    def close(self) -> None: ...
