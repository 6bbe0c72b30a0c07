"""Which episodes a design is trained on: programs, sizes of fast memory, machines, sampling.

A part of the configuration of ``hmd train``.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hmd.simulate.simulated_pmu import MAX_PERIOD

Share = Annotated[float, Field(gt=0, lt=1)]
Factor = Annotated[float, Field(ge=1, le=8)]


class EpisodeSettings(BaseModel):
    """Ranges that each episode is drawn from; all draws are uniform, in logarithms where of rates.

    An episode is one program, or up to ``parts_most`` parts of programs: phases one after another,
    or programs that share a CPU in turns of ``turn_misses``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    presets: tuple[str, ...] = Field(default=("dram-pm", "dram-cxl"), min_length=1)
    """Machines, as for hmd emulate."""
    latency_factor: Factor = 1.5
    """Latencies and bandwidths of a machine are up to so many times higher or lower."""
    fast_least: Share = 0.05
    fast_most: Share = 0.5
    """Shares of the pages that fit on the fast node."""
    period_least: Annotated[int, Field(ge=1, le=MAX_PERIOD)] = 83
    period_most: Annotated[int, Field(ge=1, le=MAX_PERIOD)] = 996
    """Misses per sample."""
    loss_most: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of samples that are lost."""
    parts_most: Annotated[int, Field(ge=1, le=16)] = 3
    misses_most: Annotated[int, Field(ge=1000)] = 4_000_000
    """Length of an episode, in misses."""
    turn_misses: Annotated[int, Field(ge=100)] = 50_000

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.fast_least > self.fast_most or self.period_least > self.period_most:
            raise ValueError("a range ends below its begin")
        return self
