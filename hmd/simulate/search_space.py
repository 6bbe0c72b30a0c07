"""The search space of ``hmd tune``: a range for each of a policy's knobs.

Takes knobs, each with the range of its definition or of the command line; gives the distributions
that Optuna draws from, and the settings for what it drew. Values are rounded as the configuration
writes them, so that the settings simulated are exactly those written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hmd.config.policy_sections import AUTO, parsed, written
from hmd.decide.tunables import About, Knob, Unit, Value
from hmd.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_DIGITS = 3  # significant ones of a value: a search is no more precise
_IS_AUTO = " is auto"  # appended to a knob's key: the name of the choice of ``auto``


@dataclass(frozen=True, slots=True)
class Range:
    """Values of a knob from ``low`` to ``high`` in its base unit, with ``auto`` or without."""

    knob: Knob
    low: float
    high: float
    log: bool
    auto: bool

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the distributions to draw from, by name."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        drawn: dict[str, BaseDistribution] = {
            self.knob.key: IntDistribution(int(self.low), int(self.high), log=self.log)
            if self._whole
            else FloatDistribution(self.low, self.high, log=self.log)
        }
        if self.auto:
            drawn[self.knob.key + _IS_AUTO] = CategoricalDistribution([True, False])
        return drawn

    def value(self, drawn: Mapping[str, Any]) -> Value:
        """Return the knob's value for drawn numbers."""
        if drawn.get(self.knob.key + _IS_AUTO):
            return None
        number = drawn[self.knob.key]
        if not self._whole:
            number = min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)
        return parsed(self.knob, written(self.knob, number))

    def drawn(self, value: Value) -> dict[str, Any] | None:
        """Return the drawn numbers that give a value; None where it is not in the range."""
        if value is None:
            middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
            number = round(middle) if self._whole else middle
            return {self.knob.key: number, self.knob.key + _IS_AUTO: True} if self.auto else None
        if isinstance(value, str) or not self.low <= value <= self.high:
            return None
        return {self.knob.key: value} | ({self.knob.key + _IS_AUTO: False} if self.auto else {})

    @property
    def span(self) -> str:
        """The range with its units, such as ``20ms to 2s or auto``."""
        low, high = (written(self.knob, self.knob.taken(end)) for end in (self.low, self.high))
        return f"{low} to {high}" + (f" or {AUTO}" if self.auto else "")

    @property
    def _whole(self) -> bool:
        return self.knob.unit in (Unit.COUNT, Unit.BYTES)


def documented(about: About, tick_s: float) -> tuple[Range, ...]:
    """Return the ranges of all knobs that define one; durations are in ticks of ``tick_s``."""
    return tuple(_documented(knob, tick_s) for knob in about.knobs if knob.search is not None)


def chosen(about: About, texts: Sequence[str], tick_s: float) -> tuple[Range, ...]:
    """Return the ranges of the command line: ``KEY``, or ``KEY=LOW:HIGH`` in the knob's unit.

    Raises UsageError for an unknown knob, a malformed range and invalid values.
    """
    knobs = {knob.key: knob for knob in about.knobs}
    found: dict[str, Range] = {}
    for text in texts:
        key, equals, span = text.partition("=")
        if key not in knobs:
            known = ", ".join(knobs) or "none"
            raise UsageError(f"--knob {text}: policy {about.name} has no knob {key!r}, but {known}")
        found[key] = _given(knobs[key], span) if equals else _documented(knobs[key], tick_s)
    return tuple(found.values())


def _documented(knob: Knob, tick_s: float) -> Range:
    if knob.search is None:
        raise UsageError(f"--knob {knob.key}: it has no range of its own: {knob.key}=LOW:HIGH")
    unit = tick_s if knob.unit is Unit.SECONDS else 1.0
    low, high = knob.search.low * unit, knob.search.high * unit
    return Range(knob, low, high, knob.search.log, auto=knob.default is None)


def _given(knob: Knob, span: str) -> Range:
    low_text, colon, high_text = span.partition(":")
    if not colon:
        raise UsageError(f"--knob {knob.key}={span}: write LOW:HIGH (one value: --set)")
    try:
        low, high = parsed(knob, low_text), parsed(knob, high_text)
    except ConfigError as error:
        raise UsageError(f"--knob {error}") from None
    if low is None or high is None:
        raise UsageError(f"--knob {knob.key}={span}: auto is no end of a range")
    if isinstance(low, str) or isinstance(high, str):
        raise UsageError(f"--knob {knob.key}: files are no range: --set {knob.key}=FILE")
    if low >= high:
        raise UsageError(f"--knob {knob.key}={span}: the first must be less than the second")
    log = knob.search is not None and knob.search.log and low > 0
    return Range(knob, low, high, log, auto=False)
