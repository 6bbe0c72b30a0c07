"""What the daemon's CPU time went to, and what gives way so that it stays within its quota.

Records for metrics and the status; :mod:`hmd.pipeline.cpu_budget` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Work(StrEnum):
    """What CPU time is used for.

    Samples: reading and counting them, and kernel threads that sample for hmd. Discovery: scans for
    processes. Other: admin requests, and the loop itself. Threads that answer clients are in none.
    """

    SAMPLES = "samples"
    SWEEP = "sweep"
    DISCOVERY = "discovery"
    DECIDE = "decide"
    MIGRATE = "migrate"
    OBSERVE = "observe"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class BudgetNumbers:
    """CPU seconds by work, what is owed (negative: saved), and what is in force now.

    ``stretch`` is the length of a tick over that of the configuration, ``plan_ticks`` the number of
    ticks per plan, ``plans_delayed`` how many waited because of the quota. Shares are of one CPU.
    ``overhead`` is the share of a CPU that records of samples took of its programs.
    """

    cpu_s: Mapping[Work, float] = field(default_factory=lambda: dict.fromkeys(Work, 0.0))
    owed_s: float = 0.0
    stretch: float = 1.0
    plan_ticks: int = 1
    plans_delayed: int = 0
    sweep_share: float = 0.0
    discovery_s: float = 0.0
    overhead: float = 0.0
