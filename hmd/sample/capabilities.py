"""The samplers by name, and what each of them observes. Imports nothing heavy.

Code asks a sampler for its capabilities instead of comparing its name; a table by name serves
those who have no open sampler: the configuration, help texts and ``hmd doctor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

SamplerName = Literal["pmu", "emulated", "damon", "idle", "faults", "softdirty"]
SamplerChoice = Literal["auto", SamplerName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sampler observes, on every machine.

    ``counts_accesses``: its rows are single accesses, as of PEBS or IBS, so that heat has no bound
    per page and tick. ``ranks_heat``: it shows which pages stay hot. ``sees_reads``: it observes
    loads from resident pages; without it, pages in use look idle. ``modelled_clock``: times are
    those of the emulated machine. ``automatic``: ``auto`` may select it. ``exclusive``: one user
    at a time. ``perf_events``: it opens perf_event_open(2), which perf_event_paranoid restricts.
    """

    counts_accesses: bool = False
    ranks_heat: bool = True
    sees_reads: bool = True
    modelled_clock: bool = False
    automatic: bool = True
    exclusive: bool = False
    perf_events: bool = False


CAPABILITIES: Final[Mapping[SamplerName, Capabilities]] = {
    "pmu": Capabilities(counts_accesses=True, perf_events=True),
    "emulated": Capabilities(counts_accesses=True, modelled_clock=True),
    "damon": Capabilities(exclusive=True),
    "idle": Capabilities(),
    "faults": Capabilities(ranks_heat=False, sees_reads=False, perf_events=True),
    # CRIU and incremental checkpoints clear the same bits, so it is never selected by auto.
    "softdirty": Capabilities(sees_reads=False, automatic=False),
}
"""All samplers, in the order in which ``auto`` tries them."""
