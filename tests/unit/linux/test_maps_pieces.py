# SPDX-License-Identifier: MIT
"""Reading mappings in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hmd.linux.mappings import PIECE_BYTES, Mappings, mapping_pieces, parse_maps, parse_smaps
from tests.fakes.open_descriptors import open_descriptors

DETAILS = """\
Rss:                   4 kB
AnonHugePages:         0 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac
"""


def write_maps(proc: Path, count: int, *, details: bool) -> bytes:
    body = DETAILS if details else ""
    text = "".join(f"{i:x}000-{i:x}fff rw-p 0 0:0 0 \n{body}" for i in range(1, count + 1)).encode()
    (proc / "7").mkdir()
    (proc / "7" / ("smaps" if details else "maps")).write_bytes(text)
    return text


@pytest.mark.parametrize("details", [False, True])
def test_pieces_together_are_all_mappings(tmp_path: Path, details: bool) -> None:
    text = write_maps(tmp_path, 5000, details=details)
    pieces = list(mapping_pieces(7, tmp_path, details=details))
    whole: Mappings = parse_smaps(text) if details else parse_maps(text)
    assert len(pieces) >= len(text) // (2 * PIECE_BYTES)
    assert max(len(piece) for piece in pieces) < 2 * PIECE_BYTES // 20
    joined = np.concatenate([piece.start for piece in pieces])
    assert joined.tolist() == whole.start.tolist()
    huge = np.concatenate([piece.huge_bytes for piece in pieces])
    assert huge.tolist() == whole.huge_bytes.tolist()


def test_pieces_of_exited_process_none(tmp_path: Path) -> None:
    assert list(mapping_pieces(7, tmp_path)) == []


def test_pieces_closed_early_file_closed() -> None:
    before = open_descriptors()
    pieces = mapping_pieces(os.getpid())
    assert len(next(pieces)) > 0
    pieces.close()
    assert open_descriptors() == before
