# SPDX-License-Identifier: MIT
"""Objects of a recorded run, and which of them are the same in another run of the program.

An object is what a daemon sees from outside the program: a mapping, by the calls that made it, or
the heap. Mappings that lie side by side are one in /proc/PID/maps, so the calls of a run are traced
(strace, on the host, without address randomisation); a recording has the same mappings at addresses
that differ by a constant. A page belongs to the last mapping that covers it. Objects that are small
beside the program have no number: nothing is known of their pages.

Between runs objects are matched in the order in which they were made. Runs that made different
numbers of them are aligned by size class, a power of two of the share of the program's pages. A
page's place in its object is relative, so that sizes may differ.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.suite.ground_truth import digest_of
from bench.suite.inputs import prepare
from bench.suite.program import SuiteProgram
from hmd.base.errors import HmdError, MissingError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.recordings.misses import MissStream

_SMALLEST: Final = 1 / 256
"""Smaller objects, by their share of the program's pages, have no number."""
_SHIFTS: Final = 512
"""Pages by which a recording's mappings may lie above or below those of the traced run."""
_GAP_PAGES: Final = 16
"""Pages that were never accessed, between two parts of one region."""
_CALL: Final = re.compile(
    r"^(?:\d+ +)?(?P<name>mmap|brk|mremap|execve)\((?P<arguments>.*)\) += (?P<result>\S+)"
)
_ANONYMOUS: Final = "MAP_ANONYMOUS"

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping of anonymous memory, or the heap; ``first`` is a page number."""

    first: int
    pages: int
    is_heap: bool = False


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of a run, in the order in which they were made.

    ``number`` and ``offset`` have shape ``(pages,)`` of the recording: the object of a page, -1 for
    none, and the page's place in it; ``sizes`` are in pages, ``(objects,)``.
    """

    number: Indices
    offset: Indices
    sizes: Indices
    is_heap: npt.NDArray[np.bool_]


def traced_mappings(program: SuiteProgram, folder: Path) -> list[Mapping]:
    """Return the mappings that a program makes, in order; traces a run of it the first time.

    Raises MissingError without strace, HmdError where the program fails.
    """
    path = folder / "variants" / f"{program.name}-{digest_of(program)}.mappings.json"
    if not path.exists():
        text = _trace(program, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = [(each.first, each.pages, each.is_heap) for each in mappings_of(text)]
        path.write_text(json.dumps(found))
    return [Mapping(*each) for each in json.loads(path.read_text())]


def _trace(program: SuiteProgram, folder: Path) -> str:
    if shutil.which("strace") is None:
        raise MissingError("no strace, which traces a program's mappings: apt-get install strace")
    command = prepare(program, folder / "inputs")
    output = folder / "variants" / f"{program.name}.strace"
    output.parent.mkdir(parents=True, exist_ok=True)
    words = [
        "setarch",
        "-R",
        "strace",
        "-f",
        "-e",
        "trace=mmap,mremap,brk,execve",
        "-o",
        str(output),
    ]
    done = subprocess.run(
        [*words, *command.argv], env=dict(command.env), capture_output=True, cwd="/tmp", check=False
    )
    if done.returncode != command.exit_status:
        raise HmdError(f"{program.name} exited with {done.returncode} while it was traced")
    text = output.read_text(errors="replace")
    output.unlink()
    return text


def mappings_of(trace: str) -> list[Mapping]:
    """Return anonymous mappings and the heap, in order, from what strace wrote of one process.

    What a program mapped before its last execve is gone. A mapping that mremap moved or resized is
    one of the new address and size, in the place of the old one.
    """
    found: list[Mapping] = []
    heap: list[int] = []
    for line in trace.splitlines():
        call = _CALL.match(line)
        if call is None or call["result"] == "-1":
            continue
        words = [word.strip() for word in call["arguments"].split(",")]
        if call["name"] == "execve":
            found, heap = [], []
        elif call["name"] == "brk":
            heap.append(int(call["result"], 16) // PAGE_BYTES)
        elif call["name"] == "mremap":
            old, new = (int(words[0], 16) // PAGE_BYTES, int(call["result"], 16) // PAGE_BYTES)
            at = [i for i, each in enumerate(found) if each.first == old]
            if at:
                found[at[-1]] = Mapping(new, _pages(int(words[2])))
        elif _ANONYMOUS in words[3] and "PROT_NONE" not in words[2]:
            found.append(Mapping(int(call["result"], 16) // PAGE_BYTES, _pages(int(words[1]))))
    if heap and max(heap) > heap[0]:
        found.insert(0, Mapping(heap[0], max(heap) - heap[0], is_heap=True))
    return found


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES)


def objects_of(stream: MissStream, mappings: Sequence[Mapping]) -> Objects:
    """Return the objects of a recording by the mappings of a traced run of the same program."""
    page = _page_numbers(stream)
    return _numbered(page, shifted(page, mappings))


def shifted(page: Indices, mappings: Sequence[Mapping]) -> list[Mapping]:
    """Return a traced run's mappings where the recording, of these page numbers, has them."""
    shift = {
        heap: _shift(page, [each for each in mappings if each.is_heap == heap])
        for heap in (False, True)
    }
    return [replace(each, first=each.first + shift[each.is_heap]) for each in mappings]


def regions_of(stream: MissStream) -> Objects:
    """Return the regions of a recording: runs of pages, as /proc/PID/maps shows them merged."""
    page = _page_numbers(stream)
    begins = np.concatenate([[0], np.flatnonzero(np.diff(page) > _GAP_PAGES) + 1, [len(page)]])
    found = [
        Mapping(int(page[begin]), int(page[end - 1] - page[begin]) + 1)
        for begin, end in pairwise(begins.tolist())
    ]
    return _numbered(page, found)


def _numbered(page: Indices, mappings: Sequence[Mapping]) -> Objects:
    """Return the large ones of mappings as objects."""
    large = [each for each in mappings if each.pages >= max(1, _SMALLEST * len(page))]
    number, offset = np.full(len(page), -1, np.int64), np.zeros(len(page), np.int64)
    for at, each in enumerate(large):
        begin, end = np.searchsorted(page, (each.first, each.first + each.pages))
        number[begin:end], offset[begin:end] = at, page[begin:end] - each.first
    sizes = np.array([each.pages for each in large], np.int64)
    return Objects(number, offset, sizes, np.array([each.is_heap for each in large], np.bool_))


def _page_numbers(stream: MissStream) -> Indices:
    address = stream.page_address[: stream.user_pages]
    return np.asarray(address // np.uint64(PAGE_BYTES)).astype(np.int64)


def _shift(page: Indices, mappings: Sequence[Mapping]) -> int:
    """Return the shift of mappings by which they cover the most pages, the smallest of equals."""
    best, covered = 0, -1
    for shift in sorted(range(-_SHIFTS, _SHIFTS + 1), key=abs):
        taken = np.zeros(len(page), np.bool_)
        for each in mappings:
            first = each.first + shift
            begin, end = np.searchsorted(page, (first, first + each.pages))
            taken[begin:end] = True
        if int(taken.sum()) > covered:
            best, covered = shift, int(taken.sum())
    return best


def matched(mine: Objects, theirs: Objects) -> Indices:
    """Return the object of the other run for each of this run's, -1 for none; ``(objects,)``."""
    found = np.full(len(mine.sizes), -1, np.int64)
    for heap in (False, True):
        here, there = (np.flatnonzero(each.is_heap == heap) for each in (mine, theirs))
        if len(here) == len(there):
            found[here] = there
            continue
        classes = [
            np.round(np.log2(each.sizes[rows] / each.sizes.sum())).tolist()
            for each, rows in ((mine, here), (theirs, there))
        ]
        same = SequenceMatcher(None, classes[0], classes[1], autojunk=False)
        for begin, other, count in same.get_matching_blocks():
            found[here[begin : begin + count]] = there[other : other + count]
    return found


def pages_in(mine: Objects, theirs: Objects) -> tuple[Indices, npt.NDArray[np.float64]]:
    """Return the other run's page for each of this run's, and by what to multiply its misses.

    -1 for no page. An object's misses are shared by its pages, so that a page of an object that is
    half as large has twice as many. Both have shape ``(pages,)`` of this run.
    """
    partner = matched(mine, theirs)
    other = np.where(mine.number >= 0, partner[mine.number], -1) if len(partner) else mine.number
    known = np.flatnonzero(other >= 0)
    found, factor = np.full(len(mine.number), -1, np.int64), np.zeros(len(mine.number))
    ratio = theirs.sizes[other[known]] / mine.sizes[mine.number[known]]
    wanted = np.floor((mine.offset[known] + 0.5) * ratio).astype(np.int64)
    # A page that the other run never accessed: the nearest one before it stands for it.
    order = np.lexsort((theirs.offset, theirs.number))
    stride = int(max(theirs.sizes.max(initial=1), 1)) + 1
    keys = theirs.number[order] * stride + theirs.offset[order]
    at = np.searchsorted(keys, other[known] * stride + wanted, side="right") - 1
    page = order[np.maximum(at, 0)]
    right = (at >= 0) & (theirs.number[page] == other[known])
    found[known[right]], factor[known[right]] = page[right], ratio[right]
    return found, factor
