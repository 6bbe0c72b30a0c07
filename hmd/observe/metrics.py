"""Prometheus metrics of the daemon, made from its last snapshot when they are asked for.

The names follow prometheus.io/docs/practices/naming: ``hmd_``, base units, ``_total`` for what
only grows. Series are bounded: by tiers, nodes and the (capped) names of targets, never by pid.
The machine's own memory is node_exporter's to tell, not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hmd.errors import HmdError
from hmd.observe.snapshot import HEAT_LOG2, Snapshot
from hmd.observe.tally import DURATION_BOUNDS_S, Durations

Labels = tuple[str, ...]


class SnapshotCollector(Collector):
    """Turns the daemon's last snapshot into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Ask ``snapshot`` at each scrape; it must not block."""
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registering collects nothing."""
        for metric in families(self._snapshot()):
            metric.samples.clear()
            yield metric

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        return families(self._snapshot())


def families(now: Snapshot) -> Iterator[Metric]:
    """Yield every metric family of hmd."""
    yield from _daemon(now)
    yield from _sampling(now)
    yield from _heat(now)
    yield from _moves(now)
    yield from _targets(now)


def _daemon(now: Snapshot) -> Iterator[Metric]:
    yield _gauge("hmd_build_info", "Version of hmd.", ("version",), {(now.version,): 1})
    yield _one("hmd_start_time_seconds", "Unix time at which the daemon started.", now.started_s)
    yield _counter("hmd_cpu_seconds", "CPU time that the daemon used.", (), {(): now.cpu_s})
    yield _one("hmd_resident_memory_bytes", "Resident memory of the daemon.", now.resident_bytes)
    yield _counter("hmd_ticks", "Ticks done.", (), {(): now.ticks})
    yield _histogram(
        "hmd_tick_duration_seconds", "Time that a tick took.", (), {(): now.tick_seconds}
    )
    yield _histogram(
        "hmd_stage_duration_seconds",
        "Time that a stage of a tick took.",
        ("stage",),
        {(stage.value,): value for stage, value in now.stage_seconds.items()},
    )
    yield _counter(
        "hmd_stage_failures",
        "Ticks in which a stage failed; the log says why.",
        ("stage",),
        {(stage.value,): value for stage, value in now.stage_failures.items()},
    )
    yield _one(
        "hmd_config_last_reload_successful",
        "1 where the last reload of the configuration succeeded.",
        float(now.reload.successful),
    )
    yield _one(
        "hmd_config_last_reload_success_timestamp_seconds",
        "Unix time of the last successful (re)load of the configuration.",
        now.reload.success_s,
    )
    yield _one("hmd_dry_run", "1 where moves are decided but not made.", float(now.dry_run))
    tiers: dict[Labels, float] = {
        (str(node),): tier for tier, nodes in enumerate(now.tiers) for node in nodes
    }
    yield _gauge("hmd_node_tier", "Tier of a memory node, 0 is fastest.", ("numa_node",), tiers)


def _sampling(now: Snapshot) -> Iterator[Metric]:
    sampler, stats = now.sampler, now.sampler.stats
    yield _gauge(
        "hmd_sampler_info", "Source of sampled accesses.", ("sampler",), {(sampler.name,): 1}
    )
    yield _one(
        "hmd_sampler_period",
        "How rarely is sampled: accesses that one sample stands for, with DAMON milliseconds.",
        sampler.period,
    )
    yield _counter(
        "hmd_sampler_cpu_seconds",
        "CPU time of kernel threads that sample for hmd, beside hmd_cpu_seconds.",
        (),
        {(): sampler.outside_cpu_s},
    )
    for name, text, value in (
        ("hmd_samples", "Samples taken of targets.", stats.samples),
        ("hmd_samples_lost", "Samples lost because a ring was full.", stats.lost),
        ("hmd_samples_dropped", "Samples of other programs or of the kernel.", stats.dropped),
        ("hmd_sampler_throttles", "Times that the kernel throttled sampling.", stats.throttled),
    ):
        yield _counter(name, text, (), {(): value})


def _heat(now: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "hmd_heat_pages",
        "Pages of 4 KiB by tier, and by log2 of their accesses a tick.",
        ("tier", "heat_log2"),
        {
            (str(tier), str(log2)): pages
            for tier, row in enumerate(now.heat_pages)
            for log2, pages in zip(HEAT_LOG2, row or [0] * len(HEAT_LOG2), strict=True)
        },
    )
    yield _one("hmd_heat_table_bytes", "Memory of the heat table.", now.heat_table_bytes)


def _moves(now: Snapshot) -> Iterator[Metric]:
    yield _counter("hmd_planned_pages", "Pages that plans named.", (), {(): now.planned_pages})
    yield _counter(
        "hmd_moved_bytes",
        "Bytes moved between nodes.",
        ("from_numa_node", "to_numa_node", "from_tier", "to_tier"),
        {
            (str(a), str(b), str(now.tier_of(a)), str(now.tier_of(b))): size
            for (a, b), size in now.moved_bytes.items()
        },
    )
    yield _counter(
        "hmd_paged_out_bytes",
        "Bytes of idle pages sent to swap, zram or their files.",
        (),
        {(): now.paged_out_bytes},
    )
    yield _counter(
        "hmd_move_failures",
        "Pages that could not be moved, by reason.",
        ("reason",),
        {(reason,): now.pages_by_status[reason] for reason in now.failure_reasons},
    )
    yield _counter(
        "hmd_deferred_pages",
        "Pages that the budget left for a later tick.",
        (),
        {(): now.pages_by_status["deferred"]},
    )
    yield _counter("hmd_move_calls", "Calls of move_pages that moved.", (), {(): now.calls})


def _targets(now: Snapshot) -> Iterator[Metric]:
    tiers = [str(i) for i in range(len(now.tiers))]
    places = [*tiers, "unknown"]
    numbers = {target.name: target.numbers for target in now.targets}
    yield _gauge(
        "hmd_target_processes",
        "Processes of a target.",
        ("target",),
        {(target.name,): target.process_count for target in now.targets},
    )
    yield _gauge(
        "hmd_target_resident_bytes",
        "Resident memory of a target in a tier.",
        ("target", "tier"),
        {
            (t, i): b
            for t, n in numbers.items()
            for i, b in zip(tiers, n.resident_bytes, strict=True)
        },
    )
    yield _counter(
        "hmd_target_accesses",
        "Sampled accesses of a target, times the period, by the tier that served them.",
        ("target", "tier"),
        {(t, i): a for t, n in numbers.items() for i, a in zip(places, n.accesses, strict=True)},
    )
    yield _gauge(
        "hmd_target_fast_access_ratio",
        "Share of a target's recent sampled accesses that the fastest tier served.",
        ("target",),
        {(t,): n.fast_share for t, n in numbers.items() if n.fast_share is not None},
    )
    for name, text, value in (
        ("promoted_bytes", "Bytes of a target moved to a faster tier.", "promoted_bytes"),
        ("demoted_bytes", "Bytes of a target moved to a slower tier.", "demoted_bytes"),
        ("move_failures", "Pages of a target that could not be moved.", "failed_pages"),
    ):
        by_target: dict[Labels, float] = {(t,): getattr(n, value) for t, n in numbers.items()}
        yield _counter(f"hmd_target_{name}", text, ("target",), by_target)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _gauge(
    name: str, text: str, labels: Labels, values: Mapping[Labels, float]
) -> GaugeMetricFamily:
    metric = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        metric.add_metric(key, value)
    return metric


def _counter(
    name: str, text: str, labels: Labels, values: Mapping[Labels, float]
) -> CounterMetricFamily:
    """Return a counter; the exposition adds ``_total`` to its name."""
    metric = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        metric.add_metric(key, value)
    return metric


def _histogram(
    name: str, text: str, labels: Labels, values: Mapping[Labels, Durations]
) -> HistogramMetricFamily:
    metric = HistogramMetricFamily(name, text, labels=labels)
    for key, durations in values.items():
        bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
        sums = [sum(durations.counts[: i + 1]) for i in range(len(bounds))]
        metric.add_metric(key, list(zip(bounds, sums, strict=True)), sum_value=durations.sum_s)
    return metric


class MetricsServer:
    """Serves the metrics over HTTP, in threads of its own, until ``close``."""

    def __init__(self, address: str, snapshot: Callable[[], Snapshot]) -> None:
        """Listen on ``ADDRESS:PORT``. Raises ``HmdError`` where that is not to be had."""
        self.address = address
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshot))
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise HmdError(
                f"cannot serve metrics on {address}: {error.strerror or error}; "
                "set observe.metrics to another ADDRESS:PORT, or to off"
            ) from None
        self._server: WSGIServer = server
        self._thread = thread

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
