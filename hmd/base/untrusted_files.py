# SPDX-License-Identifier: MIT
"""Files and arguments from elsewhere, which may be damaged or made to do harm: JSON and .npz.

``json.loads`` raises more than ``JSONDecodeError``: ``RecursionError`` for a text that is nested
too deeply, and a ``ValueError`` about Python's own limits where a number is too long. zipfile, zlib
and numpy raise many types of errors for a damaged archive: RuntimeError for an encrypted member,
NotImplementedError for an unknown compression or version, zlib.error for its data, SyntaxError or
tokenize.TokenError for an array's header.
"""

from __future__ import annotations

import json
import tokenize
import warnings
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
    UserWarning,
)
"""What reading an archive raises where the file is not readable, damaged or another kind of file.

NotImplementedError and RecursionError are RuntimeErrors."""

MAX_ARCHIVE_BYTES: Final = 1 << 30
"""Bytes of an archive's arrays; a small file may declare any size."""


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; JSONDecodeError or another ValueError for any other text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError:
        raise ValueError("a number of the JSON has too many digits") from None


def reason_of(error: BaseException) -> str:
    """Return an error of ``DAMAGED`` as one short line."""
    text = str(getattr(error, "strerror", None) or error)
    if isinstance(error, BadZipFile):
        text = "no .npz archive, or a damaged one"
    return text.splitlines()[0][:200] if text else type(error).__name__


def read_arrays(
    path: Path, names: Collection[str] | None = None, max_bytes: int = MAX_ARCHIVE_BYTES
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of these names, or all; raises one of ``DAMAGED``.

    KeyError for a missing array, ValueError where all arrays together exceed ``max_bytes``, and for
    a member that is no array.
    """
    with path.open("rb") as file:
        with ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > max_bytes:
                raise ValueError(f"its arrays take more than {max_bytes >> 20} MiB")
        file.seek(0)
        # numpy warns of headers that only Python 2 wrote.
        with warnings.catch_warnings(action="error"), np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in (arrays if names is None else names)}
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise ValueError("a member is no array")
    return found
