# SPDX-License-Identifier: MIT
"""The journal: results of simulations in a file, so that an interrupted search can continue.

One line of JSON per result: a digest of all that the result depends on (program, machine, settings,
hmd's own code), and the result. An incomplete line, after a kill, is ignored.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import hmd
from hmd.base.errors import HmdError, os_error
from hmd.base.untrusted_files import parse_json
from hmd.emulate.recordings.misses import MissStream

_SOURCES: Final = (".c", ".h", ".py")


class Journal:
    """Results by key; with a ``file`` also those of earlier runs."""

    def __init__(self, file: Path | None = None) -> None:
        """Read the file, or create it; UnavailableError where that fails."""
        self._file, self._known = file, dict[str, Any]()
        if file is None:
            return
        try:
            with file.open("a+") as opened:
                opened.seek(0)
                lines = opened.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(file, error) from None
        for line in lines:
            try:
                entry = parse_json(line)
                self._known[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def get(self, key: str) -> Any:
        """Return the result, None if there is none."""
        return self._known.get(key)

    def put(self, key: str, result: Any) -> None:
        """Store a result; UnavailableError where it cannot be written."""
        self._known[key] = result
        if self._file is None:
            return
        try:
            with self._file.open("a") as opened:
                # Start a line, also after an incomplete one.
                opened.write("\n" + json.dumps({"key": key, "result": result}))
        except OSError as error:
            raise _unusable(self._file, error) from None


def _unusable(file: Path, error: OSError | UnicodeDecodeError) -> HmdError:
    reason = getattr(error, "strerror", None) or error
    return os_error(error, f"cannot store results in {file}: {reason}")


def digest(*parts: object) -> str:
    """Return a digest of the representations of these objects."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def stream_digest(stream: MissStream) -> str:
    """Return a digest of a program's misses; about 1 ns per byte."""
    state = hashlib.blake2b(digest_size=16)
    for column in (*stream.columns(), stream.page_address):
        state.update(column.data)
    return f"{state.hexdigest()}-{stream.user_pages}"


@cache
def code_digest() -> str:
    """Return a digest of hmd's code."""
    state = hashlib.blake2b(digest_size=16)
    root = Path(hmd.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES:
            state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
