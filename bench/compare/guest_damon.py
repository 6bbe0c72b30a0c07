"""DAMON moving pages between nodes by itself: DAMOS migrate_hot and migrate_cold, set up by damo.

The shape is that of damo's own scripts/mem_tier.sh: one kdamond watches the fast node's physical
addresses and sends down what is not accessed and not young, another watches the slow node's and
brings up what is accessed in 5 % of its looks and young, at most 200 MB a second each. What that
script has besides and Linux 6.12 does not have: goals for the fast node's free and used memory
(6.16), and intervals that tune themselves (6.17). In place of the goal, what is cold is told by
its age; in place of the intervals, fixed ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.compare.testbed import Testbed
from hmd.emulate.demo.variants import FAST_NODE, SLOW_NODE
from hmd.errors import MissingError


@dataclass(frozen=True, slots=True)
class DamonSettings:
    """How DAMON watches.

    ``intervals`` are of sampling, of aggregation, and of the update of its operations; ``regions``
    the fewest and the most; what was not accessed for ``cold_age`` goes down.
    """

    intervals: tuple[str, str, str]
    regions: tuple[str, str]
    cold_age: str


WATCH = DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "500ms")
"""Of those that were tried this did best (bench/compare/emulated_settings.py)."""

SETTLE_S = 3.0
"""Until its regions are as fine as they may be: each aggregation can double them."""
QUOTA = ("--damos_quota_interval", "1s", "--damos_quota_space", "200MB")


def scheme_words(how: DamonSettings = WATCH) -> tuple[str, ...]:
    """Return the arguments of ``damo start``."""
    watch = (
        *("--monitoring_intervals", *how.intervals),
        *("--monitoring_nr_regions_range", *how.regions),
    )
    demote = (
        *("--numa_node", str(FAST_NODE), *watch),
        *("--damos_action", "migrate_cold", str(SLOW_NODE), "--damos_access_rate", "0%", "0%"),
        *("--damos_age", how.cold_age, "max", *QUOTA),
        *("--damos_filter", "reject", "young"),
    )
    promote = (
        *("--numa_node", str(SLOW_NODE), *watch),
        *("--damos_action", "migrate_hot", str(FAST_NODE), "--damos_access_rate", "5%", "max"),
        *QUOTA,
        *("--damos_filter", "reject", "none", "young"),
    )
    counts = ("--damos_nr_filters", "--nr_targets", "--nr_schemes", "--nr_ctxs")
    return (*demote, *promote, *(word for count in counts for word in (count, "1", "1")))


@contextmanager
def running_damon(stage: Testbed, how: DamonSettings = WATCH) -> Iterator[None]:
    """Let DAMON move pages of a program that is yet to start.

    Raises MissingError where damo is not installed.
    """
    damo = Path(sys.executable).with_name("damo")
    if not damo.exists():
        raise MissingError("damo is not installed: run `make setup` (PyPI package damo)")
    stage.sh("mount -t tracefs tracefs /sys/kernel/tracing 2>&-; true")  # damo looks there
    stage.sh(" ".join([str(damo), "start", *scheme_words(how)]))
    stage.move_kernel_threads()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        stage.sh(f"{damo} stop")
