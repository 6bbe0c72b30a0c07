"""One family of metrics: its name, its meaning, and its values in a snapshot.

The same record makes what Prometheus scrapes and its row in docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from hmd.observe.counters import DURATION_BOUNDS_S, Durations
from hmd.observe.snapshot import Snapshot

Labels = tuple[str, ...]
Values = Mapping[Labels, float | Durations]
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """A family; ``name`` is without the ``_total`` that the exposition adds to counters.

    ``unit`` is empty for states and names. ``meaning`` is the help text, a sentence or two.
    ``values`` returns a number for each tuple of label values, for histograms durations.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: Labels
    values: Callable[[Snapshot], Values]

    @property
    def series(self) -> tuple[str, ...]:
        """The names that queries use."""
        match self.kind:
            case "counter":
                return (f"{self.name}_total",)
            case "histogram":
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    def metric(self, now: Snapshot) -> Metric:
        """Return the family with its values."""
        if self.kind == "histogram":
            return self._histogram(now)
        family: type[CounterMetricFamily | GaugeMetricFamily] = (
            CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        )
        metric = family(self.name, self.meaning, labels=self.labels)
        for labels, value in self.values(now).items():
            assert not isinstance(value, Durations)
            metric.add_metric(labels, value)
        return metric

    def _histogram(self, now: Snapshot) -> Metric:
        metric = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
        for labels, value in self.values(now).items():
            assert isinstance(value, Durations)
            sums = [sum(value.counts[: i + 1]) for i in range(len(bounds))]
            metric.add_metric(labels, list(zip(bounds, sums, strict=True)), sum_value=value.sum_s)
        return metric


def gauge(
    name: str, unit: str, meaning: str, values: Callable[[Snapshot], Values], *labels: str
) -> Family:
    """Return a family whose values go up and down."""
    return Family(name, "gauge", unit, meaning, labels, values)


def counter(
    name: str, unit: str, meaning: str, values: Callable[[Snapshot], Values], *labels: str
) -> Family:
    """Return a family whose values only grow while the daemon runs."""
    return Family(name, "counter", unit, meaning, labels, values)


def histogram(
    name: str, meaning: str, values: Callable[[Snapshot], Mapping[Labels, Durations]], *labels: str
) -> Family:
    """Return a family of durations, counted by ``DURATION_BOUNDS_S``."""
    return Family(name, "histogram", "seconds", meaning, labels, values)


def of(value: Callable[[Snapshot], float]) -> Callable[[Snapshot], Values]:
    """Return the values of a family without labels."""
    return lambda now: {(): value(now)}
