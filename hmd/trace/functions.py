# SPDX-License-Identifier: MIT
"""Sampled accesses by the code that made them: functions of executable files, by ELF symbols.

Files are read where the trace's mappings name them, on this machine. One that is gone, that may not
be read, that has changed or has no symbols says which, and its code is named by its place in it.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import missing_extra
from hmd.base.units import PAGE_BYTES
from hmd.trace.perf_recording import clean_name
from hmd.trace.trace import Trace

MAX_FUNCTIONS: Final = 256
_MAX_TABLE_BYTES: Final = 1 << 28
_FUNCTION_TYPES: Final = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_SYMBOL: Final = {  # Elf32_Sym and Elf64_Sym of elf(5); info with the byte after it
    32: [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "<u2"), ("section", "<u2")],
    64: [("name", "<u4"), ("info", "<u2"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")],
}


def function_names(
    path: str, offset: npt.NDArray[np.uint64], until: str = ""
) -> tuple[list[str | None], str]:
    """Return the function at each offset in an ELF file, None without; and why some have none.

    Symbols of a file that was written after ``until`` (ISO 8601, UTC) are not those that ran.
    """
    none: list[str | None] = [None] * len(offset)
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return none, str(missing_extra("a name", "pyelftools", "symbols"))
    try:
        # A trace from elsewhere may name a pipe or a device, which opening may wake or wait for.
        about = Path(path).stat()
        if not stat.S_ISREG(about.st_mode):
            return none, "no regular file"
        written = datetime.fromtimestamp(about.st_mtime, UTC).isoformat(timespec="seconds")
        if until and written > until:
            return none, "the file was written after the recording began"
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return _names(ELFFile(file), offset)
    except FileNotFoundError:
        return none, "the file is gone, or was replaced"
    except OSError as error:
        return none, f"the file cannot be read: {error.strerror or error}"
    except Exception as error:  # of a damaged file the library raises any
        return none, f"no ELF file, or a damaged one: {error}"


def _names(elf: Any, offset: npt.NDArray[np.uint64]) -> tuple[list[str | None], str]:
    if max(elf.num_sections(), elf.num_segments()) > 1 << 16:
        raise ValueError("too many sections or segments")
    if not elf.little_endian:
        raise ValueError("its bytes are in the other order")
    whole = elf.get_section_by_name(".symtab")
    table = whole or elf.get_section_by_name(".dynsym")
    strings = elf.get_section(table["sh_link"]) if table is not None else None
    if strings is None or max(table.data_size, strings.data_size) > _MAX_TABLE_BYTES:
        return [None] * len(offset), "stripped: the file has no symbols, or too many"
    rows = np.frombuffer(table.data(), _SYMBOL[elf.elfclass])
    rows = rows[np.isin(rows["info"] & 15, _FUNCTION_TYPES) & (rows["section"] != 0)]
    rows = rows[np.lexsort((rows["size"], rows["value"]))]
    start = rows["value"].astype(np.uint64)
    # Of assembly without a size, up to the next one; 0 after the last, for those before the first.
    end = np.where(rows["size"] > 0, start + rows["size"], np.append(start[1:], start[-1:]))
    address = np.zeros(len(offset), np.uint64)
    for part in elf.iter_segments("PT_LOAD"):
        inside = (offset >= part["p_offset"]) & (offset < part["p_offset"] + part["p_filesz"])
        address[inside] = offset[inside] - part["p_offset"] + part["p_vaddr"]
    row = np.searchsorted(start, address, "right") - 1
    found = (row >= 0) & (address < np.append(end, np.uint64(0))[row])
    used, which = np.unique(np.where(found, row, -1), return_inverse=True)
    text = strings.data()
    begins = [int(rows["name"][at]) if at >= 0 else len(text) for at in used.tolist()]
    named = [text[at : at + 1024].split(b"\0")[0].decode(errors="replace") for at in begins]
    names = np.array([clean_name(name) or None for name in named], object)[which].tolist()
    stripped = whole is None and not found.all()
    return names, "stripped: only functions that it exports have names" if stripped else ""


def heat_by_function(trace: Trace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return which functions made the sampled accesses, and why code of some files has no names.

    Hottest first, ``MAX_FUNCTIONS`` at most: the ``function`` (None: no symbol) of a ``mapping``
    (its file, or what it is), its ``offset`` there without a symbol, its ``share`` of all accesses,
    its loads' ``mean_latency_ns`` and the ``slow_share`` of its accesses to pages that were last
    seen below the fastest tier, None where not known. Empty where samples name no instruction.
    """
    samples, code = trace.samples, trace.samples.code_address
    file, offset = np.full(len(samples), -1), np.zeros(len(samples), np.uint64)
    group, files = file.copy(), dict[str, int]()
    for mapped, at, rows in trace.located(code):
        file_of = np.zeros(len(mapped.start), int)
        for i in np.unique(at).tolist():
            path = mapped.path[i] or "anonymous memory, as of a JIT compiler"
            file_of[i] = files.setdefault(path, len(files))
        file[rows] = file_of[at]
        if mapped.offset is not None:
            offset[rows] = code[rows] - mapped.start[at] + mapped.offset[at]
    file[code >= 1 << 63] = files.setdefault("the kernel", len(files))
    file[(file < 0) & (code > 0)] = files.setdefault("code that was not seen mapped", len(files))
    reasons, began = dict[str, str](), str(trace.about.get("date", ""))
    keys: dict[tuple[str | None, str, int | None], int] = {}
    order, edge = np.argsort(file, kind="stable"), np.arange(len(files) + 1)
    edge = np.searchsorted(file[order], edge)
    for path, number in files.items():
        rows = order[edge[number] : edge[number + 1]]
        is_file = path.startswith("/")
        places, which = np.unique(offset[rows] * is_file, return_inverse=True)
        none: tuple[list[str | None], str] = [None] * len(places), ""
        names, reasons[path] = function_names(path, places, began) if is_file else none
        named = zip(names, places.tolist(), strict=True)
        each = [(name, path, at if is_file and not name else None) for name, at in named]
        group[rows] = np.array([keys.setdefault(key, len(keys)) for key in each], int)[which]
    period, slow = samples.period.astype(float), is_slow(trace)

    def weights(known: npt.NDArray[np.bool_], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        known = known & (group >= 0)
        return np.bincount(group[known], (period * values)[known], len(keys))

    whole, latency_ns = weights(code > 0, code > 0), samples.latency_ns
    timed, waited_ns = weights(latency_ns > 0, latency_ns > 0), weights(latency_ns > 0, latency_ns)
    placed, below = weights(slow >= 0, slow >= 0), weights(slow >= 0, slow)
    described, total = list(keys), max(period.sum(), 1.0)
    found = [
        {
            **dict(zip(("function", "mapping", "offset"), described[row], strict=True)),
            "share": float(whole[row] / total),
            "mean_latency_ns": float(waited_ns[row] / timed[row]) if timed[row] else None,
            "slow_share": float(below[row] / placed[row]) if placed[row] else None,
        }
        for row in np.argsort(-whole, kind="stable")[:MAX_FUNCTIONS].tolist()
    ]
    return found, {path: reason for path, reason in reasons.items() if reason}


def is_slow(trace: Trace) -> npt.NDArray[np.int8]:
    """Return 1 for samples of pages last seen below the fastest tier, 0 for others, -1: unknown."""
    samples, tiers = trace.samples, trace.about.get("tiers") or []
    slow = np.full(len(samples), -1, np.int8)
    nodes = trace.last_nodes() if len(tiers) > 1 else {}
    for index, rows in trace.rows_by_process():
        page, node = nodes.get(index, ((), ()))
        if not len(page):
            continue
        asked = samples.address[rows] & ~np.uint64(PAGE_BYTES - 1)
        at = np.searchsorted(page[:-1], asked)
        there = (page[at] == asked) & (node[at] >= 0)
        slow[rows[there]] = ~np.isin(node[at[there]], tiers[0]["nodes"])
    return slow
