# SPDX-License-Identifier: MIT
"""Miss recordings whose content was changed and whose checksums were made right again.

A mutant is replayed as it is, or refused in one line; the seed makes every run the same.
"""

from __future__ import annotations

import io
import random
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import HmdError
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MAX_INSTRUCTIONS, MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.emulate.timing_params import timing_params
from hmd.simulate.machine import first_rows
from tests.unit.simulate.conftest import stream_of

MUTANTS = 2000
PAGES = 8
EXTREMES = (0, 1, 63, 64, 255, 1023, 1024, 65535, 2**31, 2**32 - 1, 2**47, 2**63, 2**64 - 1)
REPLAYED = {
    "instructions": 3,
    "paid_hits": len(EXTREMES),
    "near_hits": len(EXTREMES),
    "page": 2,
    "line": 3,
    "flags": len(EXTREMES),
    "depends": 6,
    "page_address": 0,
}
"""How many of these values each column may have, in the last row of a recording."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The arrays of a small recording, as the archive has them."""
    path = tmp_path_factory.mktemp("misses") / "whole.misses"
    stream_of(np.arange(120) % PAGES, PAGES).write(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def mutant(members: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """Change a value, the type, the length, or any bytes of one array; or leave it out."""
    changed = dict(members)
    name = rng.choice(list(members))
    array = np.load(io.BytesIO(members[name]))
    match rng.randrange(7):
        case 0:
            flat = np.atleast_1d(array).copy()
            limit = int(np.iinfo(flat.dtype).max)
            flat[rng.randrange(len(flat))] = min(rng.choice(EXTREMES), limit)
            changed[name] = saved(flat.reshape(array.shape))
        case 1:
            changed[name] = saved(array.astype(rng.choice(["f8", "i1", "u8", "S3", "c16"])))
        case 2:
            flat = np.atleast_1d(array)
            changed[name] = saved(flat[: rng.randrange(len(flat) + 1)])
        case 3:
            data = bytearray(members[name])
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            changed[name] = bytes(data)
        case 4:
            del changed[name]
        case 5:
            claimed = members[name].replace(b"(128,)", rng.choice([b"(1<<9,)", b"(9**9,)"]))
            changed[name] = claimed.replace(b"(8,), ", b"(1000000000000,), ", 1)
        case 6:
            flat = np.atleast_1d(array).copy()
            changed[name] = saved(flat[::-1].reshape(array.shape))
    return changed


def saved(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def test_mutants_of_recordings_replayed_or_refused_in_one_line(
    members: dict[str, bytes], preset: Preset, tmp_path: Path
) -> None:
    rng, refused = random.Random(20), 0
    for _ in range(MUTANTS):
        path = written(tmp_path / "mutant.misses", mutant(members, rng))
        try:
            stream = MissStream.read(path)
        except HmdError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        assert (first_rows(stream) <= len(stream)).all()
        replayed(stream, preset, np.zeros(stream.user_pages, np.bool_))
    assert MUTANTS // 2 < refused < MUTANTS


@pytest.mark.parametrize("column", [field.name for field in fields(MissStream)[:8]])
def test_recording_with_extreme_values_replayed_or_refused_in_one_line(
    column: str, preset: Preset, tmp_path: Path
) -> None:
    refused = 0
    for value in EXTREMES:
        stream = stream_of(np.arange(100) % PAGES, PAGES)
        values = getattr(stream, column)
        values[-1] = min(value, int(np.iinfo(values.dtype).max))
        stream.write(tmp_path / "x.misses")
        try:
            found = MissStream.read(tmp_path / "x.misses")
        except HmdError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        assert replayed(found, preset, np.zeros(found.user_pages, np.bool_)) > 0
    assert refused == len(EXTREMES) - REPLAYED[column]


def test_recording_that_expands_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    path = written(tmp_path / "packed.misses", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(HmdError, match="its arrays take more than"):
        MissStream.read(path)


def test_long_stretch_of_hits_costs_its_time(preset: Preset) -> None:
    """Beyond the 4 ms that 32 bits of picoseconds hold."""
    short, long = (stream_of(np.zeros(1, np.int64), 2) for _ in range(2))
    hits = 10_000_000
    long.paid_hits[-1] = hits
    long.instructions[-1] = hits
    short.instructions[-1] = hits
    layout = np.zeros(2, np.bool_)
    extra_ps = replayed(long, preset, layout) - replayed(short, preset, layout)
    assert extra_ps >= hits * timing_params(preset).llc_hit_ps * 0.99
    assert hits < MAX_INSTRUCTIONS
