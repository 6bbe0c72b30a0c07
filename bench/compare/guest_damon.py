"""DAMON as a tiering system: the DAMOS actions migrate_hot and migrate_cold, set up by damo.

The set-up follows damo's scripts/mem_tier.sh. One kdamond monitors the fast node's physical
addresses and demotes regions without accesses that are not young; another monitors those of the
slow node and promotes young regions accessed in at least 5 % of checks; each at most 200 MB per
second. The script also uses features that Linux 6.12 lacks: goals for the fast node's free and
used memory (6.16), replaced here by the age of cold regions, and auto-tuned intervals (6.17),
replaced by fixed ones.
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
    """Monitoring attributes of DAMON.

    ``intervals`` are the sampling, aggregation and operations-update intervals; ``regions`` the
    minimum and maximum; regions without accesses for ``cold_age`` are demoted.
    """

    intervals: tuple[str, str, str]
    regions: tuple[str, str]
    cold_age: str


WATCH = DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "500ms")
"""The best of the tried settings (bench/compare/emulated_settings.py)."""

SETTLE_S = 3.0
"""Time for regions to split to the maximum: each aggregation can double their number."""
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
    """Run DAMON's schemes for programs that start later.

    Raises MissingError where damo is not installed.
    """
    damo = Path(sys.executable).with_name("damo")
    if not damo.exists():
        raise MissingError("damo is not installed: run `make setup` (PyPI package damo)")
    stage.sh("mount -t tracefs tracefs /sys/kernel/tracing 2>&-; true")  # damo reads tracefs there
    stage.sh(" ".join([str(damo), "start", *scheme_words(how)]))
    stage.move_kernel_threads()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        stage.sh(f"{damo} stop")
