"""A trace's samples as arrays for other tools: NumPy's .npz, or Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hmd.errors import HmdError
from hmd.extras import missing_extra
from hmd.finished_file import finished_file
from hmd.trace.trace import SAMPLE_COLUMNS, Trace


def export(trace: Trace, file: Path) -> None:
    """Write the samples, and the trace's metadata as JSON text.

    The suffix selects the format. Raises MissingError for .parquet without pyarrow, HmdError for
    another suffix, and as ``finished_file``.
    """
    columns = {name: getattr(trace.samples, name) for name in SAMPLE_COLUMNS}
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
