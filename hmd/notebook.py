# SPDX-License-Identifier: MIT
"""hmd for notebooks and scripts: traces as columns and frames, and what commands say of them.

``import hmd`` has these names; this module, and what it needs, loads with the first of them.
Options of ``estimate`` and ``simulate`` are those of ``hmd estimate`` and ``hmd simulate``, with
``_`` for ``-``: the same options give the same figures. ``True`` sets a flag, a list repeats an
option, a dictionary gives ``KEY=VALUE``. What they return is what ``--json`` prints, ``schema`` and
``made_by`` included. Errors are those of :mod:`hmd.base.errors`: one line that says what to do.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError, missing_extra
from hmd.base.units import PAGE_BYTES
from hmd.cli.main import parse
from hmd.cli.output import described, note_invocation
from hmd.estimate.layout import heat_order
from hmd.estimate.samples import PageIndex, index_pages, page_keys
from hmd.trace.reader import TraceFile
from hmd.trace.trace import Trace

if TYPE_CHECKING:
    import argparse

    from hmd.policy.settings import PolicyInfo
    from hmd.sample.access_batch import Samples

StrPath = str | PathLike[str]

PUBLIC: Final = (
    *("open_trace", "simulate_policies", "policies"),
    *("Recording", "WorkingSet", "Picture"),
)
"""What the reference page lists."""


def open_trace(path: StrPath) -> Recording:
    """Return a trace of ``hmd record`` or ``hmd trace import``.

    Raises TraceError where the file is no trace, or is damaged.
    """
    return Recording(Path(path))


def simulate_policies(
    path: StrPath, policies: str | Sequence[str] = (), /, **options: Any
) -> dict[str, Any]:
    """Return the runtime of a program under policies, as ``hmd simulate --json`` prints it.

    ``path`` is of recorded misses (``hmd simulate --record``) or a trace; ``policies`` are names,
    or Python files with a policy, by default the daemon's. ``baselines_s`` has the runtimes of all
    fast, all slow, first touch, interleaving and an oracle, ``policies`` those of policies.
    """
    from hmd.cli.simulate_command import simulated_document

    named = [policies] if isinstance(policies, str) else list(policies)
    args = _arguments("simulate", [path], {"policy": named, **options})
    return described(simulated_document(args))


def policies() -> tuple[PolicyInfo, ...]:
    """Return all policies: ``name``, ``summary``, ``suits``, and ``settings`` with their ranges."""
    from hmd.policy import registry

    return tuple(registry.info(name) for name in registry.names())


class Recording:
    """A trace of a program: samples, the pages that they show, and what follows from both.

    ``samples`` has up to 2^20 of the samples, every ``trace.stride``-th; ``pages`` counts all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = TraceFile(path)

    def __repr__(self) -> str:
        return (
            f"<{self.path}: {self.trace.runtime_ns / 1e9:.3f} s, {self._file.recorded:,} samples,"
            f" {len(self.pages):,} pages>"
        )

    @property
    def trace(self) -> Trace:
        """The trace: ``about`` (META of the format), ``processes``, ``runtime_ns``, ``stride``."""
        return self._file.thinned

    @property
    def samples(self) -> Samples:
        """Samples as numpy columns in order of time, each of shape ``(n,)``.

        ``time_ns``, ``address``, ``process`` (an index), ``thread``, ``cpu``, ``kind`` (0 load, 1
        store, 2 page fault), ``latency_ns`` (0: unknown), ``period`` (accesses that a row stands
        for), ``instructions`` and ``code_address`` (of the instruction; 0: unknown).
        """
        return self.trace.samples

    @cached_property
    def pages(self) -> PageIndex:
        """Sampled pages: columns ``process``, ``address``, ``accesses``, each of ``(pages,)``."""
        return index_pages(self._file)

    def to_pandas(self) -> Any:
        """Return ``samples`` as a pandas.DataFrame. Raises MissingError without pandas."""
        return _frame("pandas")(self._columns())

    def to_polars(self) -> Any:
        """Return ``samples`` as a polars.DataFrame. Raises MissingError without polars."""
        return _frame("polars")(self._columns())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {each.name: getattr(self.samples, each.name) for each in fields(self.samples)}

    def needed_bytes(self, share: float) -> int:
        """Return the memory of the hottest sampled pages that have this share of all accesses."""
        if not 0 <= share <= 1:
            raise UsageError(f"a share is from 0 to 1, not {share}")
        reached = np.cumsum(self.pages.accesses[heat_order(self.pages)])
        if not len(reached):
            return 0
        at = np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)) + (share > 0)
        return int(min(at, len(reached))) * PAGE_BYTES

    def working_set(self, window_s: float | None = None) -> WorkingSet:
        """Return the memory that was accessed in each window, by default a hundredth of the run.

        It is that of sampled pages, a lower bound: a longer period shows less.
        """
        samples, trace = self.samples, self.trace
        window_ns = max(window_s * 1e9 if window_s else trace.runtime_ns / 100, 1.0)
        passed = samples.time_ns.astype(np.float64) - trace.begin_ns
        window = np.maximum(passed / window_ns, 0).astype(np.int64)
        _, page = np.unique(page_keys(samples), return_inverse=True)
        seen = np.unique(window * (page.max(initial=0) + 1) + page) // (page.max(initial=0) + 1)
        count = max(int(np.ceil(trace.runtime_ns / window_ns)), 1)
        pages = np.bincount(np.minimum(seen, count - 1), minlength=count)
        return WorkingSet(np.arange(count) * np.float64(window_ns / 1e9), pages * PAGE_BYTES)

    def estimate(
        self, fast: Recording | StrPath | None = None, /, **options: Any
    ) -> dict[str, Any]:
        """Return what ``hmd estimate --json`` prints of this trace, all of whose pages were slow.

        ``fast`` is the trace with all pages fast; without it accesses are told, and runtimes only
        where the trace has latencies and the speeds of both tiers. For example
        ``slow.estimate(fast, hot_first="25%")``, or ``sweep=True``.
        """
        from hmd.cli import estimate_command

        paths = [self.path]
        if fast is not None:
            paths.append(fast.path if isinstance(fast, Recording) else Path(fast))
        args = _arguments("estimate", paths, options)
        if fast is None:
            return described(estimate_command.one_run_document(args))
        return described(estimate_command.answer_document(args))

    def simulate(self, policies: str | Sequence[str] = (), /, **options: Any) -> dict[str, Any]:
        """Return the program's runtime under policies, as :func:`simulate_policies` does."""
        return simulate_policies(self.path, policies, **options)

    def plot(self) -> Picture:
        """Return samples over time and address. Raises MissingError without matplotlib."""
        from hmd.cli.plots import draw_trace

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.png"
            draw_trace(self.trace, file)
            return Picture(file.read_bytes())


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Memory accessed in windows that begin at ``begin_s``: columns of shape ``(windows,)``."""

    begin_s: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]

    def percentile(self, percent: float) -> float:
        """Return the bytes that so many per cent of windows do not exceed."""
        return float(np.percentile(self.bytes, percent))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that notebooks show; ``png`` is the file's content."""

    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: StrPath) -> None:
        """Write the file."""
        Path(path).write_bytes(self.png)


def _frame(package: str) -> Any:
    try:
        return __import__(package).DataFrame
    except ImportError:
        raise missing_extra("a frame", package, "frames") from None


def _arguments(
    command: str, paths: Sequence[StrPath], options: Mapping[str, Any]
) -> argparse.Namespace:
    """Return the arguments of a command line. Raises UsageError where it is wrong."""
    words = [command, *map(str, paths)]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, Mapping):
            values = [f"{key}={each}" for key, each in value.items()]
        for each in values:
            if each is True:
                words.append(option)
            elif each is not None and each is not False:
                words += [option, str(each)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = parse(words)
    except SystemExit:
        raise UsageError(said.getvalue().strip().removeprefix("hmd: ")) from None
    note_invocation(words, args)
    return args
