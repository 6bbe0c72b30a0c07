"""Import of the published traces of the differential-tracing paper.

Denoyelle, Perarnau, Iskra and Gerofi, ISC 2022: PEBS samples of last-level cache misses on a
Knights Landing node, one run with all pages in DDR4 and one in MCDRAM. Files are .npz with
``time_tsc`` (int64, from 0, 1.4 million ticks per millisecond) and ``vaddr`` (uint64).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hmd.numpy_archive import DAMAGED, read_arrays, reason_of
from hmd.trace.trace import Ending, Samples, Trace, TracedProcess
from hmd.trace.trace_reader import TraceError

TICKS_PER_MS = 1_400_000
PERIOD = 32


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
    samples = Samples(
        time_ns=time_ns[order],
        address=address.astype(np.uint64)[order],
        process=np.zeros(count, np.uint16),
        thread=np.zeros(count, np.uint32),
        cpu=np.zeros(count, np.uint16),
        kind=np.zeros(count, np.uint8),
        weight_ns=np.zeros(count, np.uint32),
        period=np.full(count, PERIOD, np.uint32),
        instructions=np.zeros(count, np.uint64),
    )
    about = {
        "begin_ns": 0,
        "source": str(path.name),
        "sampler": "pmu",
        "detail": "PEBS, last-level cache load misses, Knights Landing",
        "period": PERIOD,
    }
    ending = Ending(0, int(samples.time_ns[-1]), None)
    return Trace(about, (TracedProcess(0, path.stem),), samples, ending=ending)
