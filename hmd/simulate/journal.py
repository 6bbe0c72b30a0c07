"""What simulations gave, kept in a file, so that a search that was broken off can go on.

A line of JSON each: a digest of all that a result depends on (program, machine, settings, hmd's own
code), and the result. A line that was cut off by a kill is left out.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import hmd
from hmd.emulate.miss_stream import MissStream
from hmd.errors import os_error

_ROOMS: Final = (
    "control",
    "decide",
    "emulate",
    "heat",
    "machine",
    "migrate",
    "pipeline",
    "sample",
    "simulate",
)
"""The rooms whose code a simulation runs."""
_SOURCES: Final = (".c", ".h", ".py")


class Journal:
    """Results by key; those of earlier runs too where there is a ``file``."""

    def __init__(self, file: Path | None = None) -> None:
        """Read the file, which is made if it is not there; UnavailableError where that fails."""
        self._file, self._known = file, dict[str, Any]()
        if file is None:
            return
        try:
            with file.open("a+") as opened:
                opened.seek(0)
                lines = opened.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise os_error(error, f"cannot keep results in {file}: {error}") from None
        for line in lines:
            try:
                entry = json.loads(line)
                self._known[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def get(self, key: str) -> Any:
        """Return the result, None where it is not known."""
        return self._known.get(key)

    def put(self, key: str, result: Any) -> None:
        """Keep a result; UnavailableError where it cannot be written."""
        self._known[key] = result
        if self._file is None:
            return
        try:
            with self._file.open("a") as opened:
                # A line of its own, also after one that was cut off.
                opened.write("\n" + json.dumps({"key": key, "result": result}))
        except OSError as error:
            raise os_error(error, f"cannot keep results in {self._file}: {error}") from None


def digest(*parts: object) -> str:
    """Return a digest of what prints as these."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def stream_digest(stream: MissStream) -> str:
    """Return a digest of a program's misses; about 1 ns a byte."""
    state = hashlib.blake2b(digest_size=16)
    for column in (*stream.columns(), stream.page_address):
        state.update(column.data)
    return f"{state.hexdigest()}-{stream.user_pages}"


def code_digest() -> str:
    """Return a digest of the code that a simulation runs."""
    state = hashlib.blake2b(digest_size=16)
    root = Path(hmd.__file__).parent
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in _SOURCES:
                state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
