# SPDX-License-Identifier: MIT
"""Traces in other formats: samples as arrays for other tools, recordings of perf, published traces.

Exports are NumPy's .npz, or Parquet. ``open_recording`` tells what perf made from what other tools
did. ``read_knl`` imports the traces of Denoyelle, Perarnau, Iskra
and Gerofi, ISC 2022: PEBS samples of last-level cache misses on a Knights Landing node, one run
with all pages in DDR4 and one in MCDRAM. Their files are .npz with ``time_tsc`` (int64, from 0, 1.4
million ticks per millisecond) and ``vaddr`` (uint64).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hmd.base.atomic_file import finished_file
from hmd.base.errors import HmdError, missing_extra
from hmd.base.untrusted_files import DAMAGED, read_arrays, reason_of
from hmd.sample.access_batch import FILE_NAMES, SAMPLE_COLUMNS, Samples
from hmd.trace.perf_data import MAGIC, OTHER_MAGICS, PerfData
from hmd.trace.perf_recording import PerfRecording
from hmd.trace.reader import TraceError
from hmd.trace.text_recordings import FIELDS, GZIP, AccessText, PerfScript, form_of
from hmd.trace.trace import Ending, Trace, TracedProcess

TICKS_PER_MS = 1_400_000
PERIOD = 32


def export(trace: Trace, file: Path) -> None:
    """Write the samples, and the trace's metadata as JSON text.

    The suffix selects the format. Raises MissingError for .parquet without pyarrow, HmdError for
    another suffix, and as ``finished_file``.
    """
    columns = {file_name: getattr(trace.samples, name) for name, file_name in FILE_NAMES.items()}
    about = json.dumps(
        {
            **trace.about,
            "clock": trace.clock,
            "begin_ns": trace.begin_ns,
            "runtime_ns": trace.runtime_ns,
            "elapsed_ns": trace.ending.elapsed_ns if trace.ending else None,
            "lost": trace.losses.lost,
            "processes": [[process.pid, process.name] for process in trace.processes],
        }
    )
    if file.suffix == ".npz":
        with finished_file(file, private=True) as opened:
            np.savez_compressed(opened, about=np.array(about), **columns)
    elif file.suffix == ".parquet":
        _parquet(file, columns, about)
    else:
        raise HmdError(f"export to {file}: the name ends in neither .npz nor .parquet")


def _parquet(file: Path, columns: dict[str, Any], about: str) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_extra("Parquet", "pyarrow", "parquet") from None
    table = pyarrow.table(columns).replace_schema_metadata({"hmd": about})
    with finished_file(file, private=True) as opened:
        parquet.write_table(table, opened)


def open_recording(
    path: Path, fields: str | None = None, runtime_s: float | None = None
) -> PerfRecording | None:
    """Return a recording of perf, Pin or DynamoRIO, None for an archive (.npz).

    ``fields`` are those of ``perf script -F``, of a text; ``runtime_s`` is the time of a program
    whose accesses have none. Raises TraceError where the file is unreadable.
    """
    try:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from None
    if first.startswith(b"PK"):
        return None
    if first.startswith(b"HMDTRACE"):
        raise TraceError(f"{path} is a trace already: 'hmd trace info {path}' shows it")
    if first in (MAGIC, *OTHER_MAGICS) or (b"\0" in first and not first.startswith(GZIP)):
        return PerfData(path)
    if fields is None and (form := form_of(path)) is not None:
        return AccessText(path, form, runtime_s)
    return PerfScript(path, fields or FIELDS)


def read_knl(path: Path) -> Trace:
    """Return a published trace; its runtime is the time of its last sample.

    Raises TraceError if the file cannot be read or lacks an array.
    """
    try:
        arrays = read_arrays(path, ("time_tsc", "vaddr"))
        ticks, address = arrays["time_tsc"], arrays["vaddr"]
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from None
    except KeyError as error:
        raise TraceError(f"{path} has no arrays time_tsc and vaddr: {reason_of(error)}") from None
    except DAMAGED as error:
        raise TraceError(f"{path} is damaged or no .npz: {reason_of(error)}") from None
    if ticks.ndim != 1 or ticks.shape != address.shape or not len(ticks):
        raise TraceError(f"{path}: time_tsc and vaddr are not columns of the same length")
    count = len(ticks)
    # In two steps, so that no product of ticks exceeds 64 bits.
    whole_ms, rest = np.divmod(ticks.astype(np.int64), TICKS_PER_MS)
    time_ns = (whole_ms * 1_000_000 + rest * 1_000_000 // TICKS_PER_MS).astype(np.uint64)
    order = np.argsort(time_ns, kind="stable")
    columns = {name: np.zeros(count, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns |= {"time_ns": time_ns[order], "address": address.astype(np.uint64)[order]}
    columns["period"][:] = PERIOD
    samples = Samples(**columns)
    about = {
        "begin_ns": 0,
        "source": str(path.name),
        "sampler": "pmu",
        "detail": "PEBS, last-level cache load misses, Knights Landing",
        "period": PERIOD,
    }
    ending = Ending(0, int(samples.time_ns[-1]), None)
    return Trace(about, (TracedProcess(0, path.stem),), samples, ending=ending)
