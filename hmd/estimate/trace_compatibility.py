"""Whether two traces go together: two runs of one program, one slow and one fast."""

from __future__ import annotations

from hmd.errors import UsageError
from hmd.trace.trace import Trace


def check(slow: Trace, fast: Trace, names: tuple[str, str] = ("SLOW", "FAST")) -> list[str]:
    """Return what to be careful about, a sentence each; ``names`` are what messages call them.

    Raises UsageError, in one line, where nothing can be estimated from these two.
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
    return _doubts(slow, fast, names)


def _doubts(slow: Trace, fast: Trace, names: tuple[str, str]) -> list[str]:
    slow_name, fast_name = names
    doubts = []
    commands = [list(trace.about.get("command") or []) for trace in (slow, fast)]
    if all(commands) and commands[0] != commands[1]:
        doubts.append(f"{slow_name} and {fast_name} are of different commands")
    for name, trace in zip(names, (slow, fast), strict=True):
        code = trace.ending.exit_code if trace.ending is not None else None
        if code:
            doubts.append(f"{name} ended with exit code {code}: is that all of the run?")
    if fast.runtime_ns > slow.runtime_ns:
        doubts.append(
            f"{fast_name} took longer than {slow_name} ({fast.runtime_ns / 1e9:.3f} s against "
            f"{slow.runtime_ns / 1e9:.3f} s): are they swapped?"
        )
    if not len(fast.samples):
        doubts.append(f"{fast_name} has no samples: its runtime alone is used")
    return doubts
