"""Whether two traces form a pair: two runs of one program, one all-slow and one all-fast."""

from __future__ import annotations

import numpy as np

from hmd.errors import UsageError
from hmd.trace.trace import Trace
from hmd.trace.trace_summary import resident_pages

SAME_PLACEMENT = 0.05
"""Two runs have the same placement if less than this share of their pages is on other nodes."""


def check(slow: Trace, fast: Trace, names: tuple[str, str] = ("SLOW", "FAST")) -> list[str]:
    """Return warnings, one sentence each; ``names`` are the traces' names in messages.

    Raises UsageError, in one line, if the pair cannot be estimated from: no slow samples, two
    clocks, the wrong order, one recording given twice, or two runs with the same placement.
    """
    slow_name, fast_name = names
    if not len(slow.samples):
        raise UsageError(f"{slow_name} has no samples: record with a shorter --period")
    if slow.clock != fast.clock:
        raise UsageError(
            f"{slow_name} has {slow.clock} time and {fast_name} {fast.clock}: "
            "record both on one machine"
        )
    tiers = slow.about.get("tier"), fast.about.get("tier")
    if tiers == ("fast", "slow"):
        raise UsageError(
            f"{slow_name} was recorded with --tier fast and {fast_name} with --tier slow: "
            "name the slow one first"
        )
    if tiers[0] is not None and tiers[0] == tiers[1]:
        raise UsageError(
            f"{slow_name} and {fast_name} were both recorded with --tier {tiers[0]}: "
            "record one with --tier slow and one with --tier fast"
        )
    if _same_recording(slow, fast):
        raise UsageError(
            f"{slow_name} and {fast_name} are the same recording: "
            "record one run with --tier slow and one with --tier fast"
        )
    if tiers != ("slow", "fast") and _same_placement(slow, fast):
        raise UsageError(
            f"both runs had the same placement: nothing to compare in {slow_name} and "
            f"{fast_name}; record one with --tier slow and one with --tier fast"
        )
    return _warnings(slow, fast, names)


def _same_recording(slow: Trace, fast: Trace) -> bool:
    """Return whether two traces hold the same samples and the same runtime."""
    return (
        slow.runtime_ns == fast.runtime_ns
        and np.array_equal(slow.samples.time_ns, fast.samples.time_ns)
        and np.array_equal(slow.samples.address, fast.samples.address)
    )


def _same_placement(slow: Trace, fast: Trace) -> bool:
    """Return whether both runs ended with the same share of their pages on each node.

    False if a trace has no placement, as an imported one.
    """
    shares = []
    for trace in (slow, fast):
        pages = resident_pages(trace)
        total = sum(pages.values())
        if not total:
            return False
        shares.append({node: count / total for node, count in pages.items()})
    elsewhere = sum(
        abs(shares[0].get(node, 0.0) - shares[1].get(node, 0.0))
        for node in shares[0].keys() | shares[1].keys()
    )
    return elsewhere / 2 < SAME_PLACEMENT


def _warnings(slow: Trace, fast: Trace, names: tuple[str, str]) -> list[str]:
    slow_name, fast_name = names
    warnings = []
    commands = [list(trace.about.get("command") or []) for trace in (slow, fast)]
    if all(commands) and commands[0] != commands[1]:
        warnings.append(f"{slow_name} and {fast_name} record different commands")
    for name, trace in zip(names, (slow, fast), strict=True):
        code = trace.ending.exit_code if trace.ending is not None else None
        if code:
            warnings.append(f"{name} ended with exit code {code}: check that the run is complete")
    if fast.runtime_ns > slow.runtime_ns:
        warnings.append(
            f"{fast_name} took longer than {slow_name} ({fast.runtime_ns / 1e9:.3f} s versus "
            f"{slow.runtime_ns / 1e9:.3f} s): check that they are not swapped"
        )
    if not len(fast.samples):
        warnings.append(f"{fast_name} has no samples: only its runtime is used")
    return warnings
