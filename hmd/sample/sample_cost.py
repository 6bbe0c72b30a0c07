"""The CPU time that one more sample costs, from the costs of recent ticks.

Reading and counting samples takes CPU = a + b x samples per tick. Only b depends on the sampling
period, and a may be most of it where ticks are short. b is the slope of a least-squares line
through the recent ticks, whose weights decay. Where the numbers of samples differ too little,
the slope stays as it was; it begins as the mean cost per sample, which is too large rather
than too small.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEEP = 0.9
"""Weight of a tick relative to the next one: about ten ticks count."""

_LEAST_SPREAD = 0.05
"""Variance of the numbers of samples, over their squared mean, at which a line counts half."""

_LEAST_SHARE = 0.05
"""The slope is at least this share of its upper bound: no sample is free."""

_RISE = 1.02
"""Growth per tick of the upper bound, which is the least cost per sample of any recent tick."""


@dataclass(slots=True)
class _Sums:
    weight: float = 0.0
    units: float = 0.0
    cpu: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, units: float, cpu_s: float) -> None:
        self.weight = _KEEP * self.weight + 1
        self.units = _KEEP * self.units + units
        self.cpu = _KEEP * self.cpu + cpu_s
        self.squares = _KEEP * self.squares + units * units
        self.products = _KEEP * self.products + units * cpu_s


class SampleCost:
    """``per_unit_s`` is the slope, in seconds per sample or other unit of work."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self.per_unit_s = 0.0
        self._most_s = float("inf")

    def add(self, units: float, cpu_s: float) -> None:
        """Add a tick that took ``cpu_s`` of CPU time for ``units``."""
        sums = self._sums
        sums.add(units, cpu_s)
        if sums.units <= 0:
            return
        if units > 0:  # the fixed part is in it, so that no sample can cost more
            self._most_s = min(_RISE * self._most_s, cpu_s / units)
        mean_units = sums.units / sums.weight
        variance = sums.squares / sums.weight - mean_units**2
        if not self.per_unit_s:
            self.per_unit_s = self._most_s
        if variance > 0:
            covariance = sums.products / sums.weight - mean_units * sums.cpu / sums.weight
            known = variance / (variance + _LEAST_SPREAD * mean_units**2)
            slope = covariance / variance
            self.per_unit_s += known * (slope - self.per_unit_s)
        self.per_unit_s = min(max(self.per_unit_s, _LEAST_SHARE * self._most_s), self._most_s)
