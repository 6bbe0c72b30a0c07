"""Numpy archives (.npz) that may come from elsewhere: bounded reading, and what damage raises.

zipfile, zlib and numpy raise many types of errors for a damaged archive: RuntimeError for an
encrypted member, NotImplementedError for an unknown compression or version, zlib.error for its
data, SyntaxError or tokenize.TokenError for an array's header.
"""

from __future__ import annotations

import tokenize
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

DAMAGED: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    OverflowError,
    MemoryError,
    BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What reading an archive raises where the file is not readable, damaged or another kind of file.

NotImplementedError and RecursionError are RuntimeErrors."""

MOST_BYTES: Final = 1 << 30
"""Bytes of an archive's arrays; a small file may declare any size."""


def reason_of(error: BaseException) -> str:
    """Return an error of ``DAMAGED`` as one short line."""
    text = str(getattr(error, "strerror", None) or error)
    return text.splitlines()[0][:200] if text else type(error).__name__


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of these names, or all; raises one of ``DAMAGED``.

    KeyError for a missing array, ValueError where all arrays together exceed ``MOST_BYTES``.
    """
    with path.open("rb") as file:
        with ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"its arrays take more than {MOST_BYTES >> 20} MiB")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in (arrays if names is None else names)}
