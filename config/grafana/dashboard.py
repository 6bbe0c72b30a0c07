"""The Grafana dashboard, panel by panel; run it to write hmd.json beside it.

A row of panels is a list; each has a title, what it tells, a unit of Grafana's, and queries with
their legends. The tests run every query against a real Prometheus (tests/prometheus/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("hmd.json")
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_INSTANCE = 'instance=~"$instance"'
OF_TARGET = 'instance=~"$instance", target=~"$target"'


@dataclass(frozen=True, slots=True)
class Query:
    """What to ask, and how to call each series of the answer.

    In ``expr``, ``{}`` selects the chosen instances, ``{T}`` also the chosen targets; with more
    labels ``{, tier="0"}`` and ``{T, tier="0"}``. ``[R]`` is the interval that rates need.
    """

    expr: str
    legend: str

    @property
    def text(self) -> str:
        """The query as Grafana has it."""
        made = self.expr.replace("{T", "{" + OF_TARGET).replace("[R]", "[$__rate_interval]")
        return made.replace("{}", "{" + OF_INSTANCE + "}").replace("{,", "{" + OF_INSTANCE + ",")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel; ``steps`` are thresholds (value, colour), ``names`` what states are called.

    ``below`` matches the legends of series that are drawn downward.
    """

    title: str
    tells: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stack: bool = False
    most: float | None = None
    steps: tuple[tuple[float, str], ...] = ()
    names: tuple[tuple[str, str, str], ...] = ()
    below: str = ""
    by_name: bool = False


def stat(title: str, tells: str, unit: str, expr: str, **more: Any) -> Panel:
    """Return a panel of one figure."""
    legend = more.pop("legend", "{{instance}}")
    return Panel(title, tells, unit, (Query(expr, legend),), "stat", 3, 4, **more)


OVERVIEW = [
    stat(
        "State",
        "Whether Prometheus reaches the daemon.",
        "none",
        "up{}",
        names=(("1", "up", "green"), ("0", "down", "red")),
    ),
    stat(
        "Last tick",
        "Time since the last tick. Many times the tick's interval: the daemon hangs.",
        "s",
        "time() - hmd_last_tick_timestamp_seconds{}",
        steps=((30, "orange"), (120, "red")),
    ),
    stat(
        "Served by fast memory",
        "Share of the targets' sampled accesses that the fastest tier served.",
        "percentunit",
        'sum(rate(hmd_target_accesses_total{, tier="0"}[R])) / '
        'sum(rate(hmd_target_accesses_total{, tier!="unknown"}[R]))',
        legend="all targets",
    ),
    stat(
        "Fast memory of targets",
        "Share of the fastest tier that targets' pages take.",
        "percentunit",
        'sum(hmd_target_resident_bytes{, tier="0"}) / sum(hmd_node_memory_bytes{, tier="0"})',
        legend="all targets",
    ),
    stat(
        "Loads wait less by",
        "Seconds of waiting that recent moves save each second, less what they cost, by samples.",
        "suffix: s/s",
        "sum(rate(hmd_realised_saving_seconds_total{}[R])) - "
        "sum(rate(hmd_realised_loss_seconds_total{}[R]))",
        legend="all targets",
    ),
    stat(
        "CPU of hmd",
        "Share of one CPU that the daemon and the kernel threads that sample for it take.",
        "percentunit",
        "rate(hmd_cpu_seconds_total{}[R]) + rate(hmd_sampler_cpu_seconds_total{}[R])",
        steps=((0.05, "orange"), (0.2, "red")),
    ),
    stat(
        "Configuration",
        "How the last reload went; after a failed one the old configuration stays in force.",
        "none",
        "hmd_config_last_reload_successful{}",
        names=(("1", "in force", "green"), ("0", "reload failed", "red")),
    ),
    stat(
        "Runs",
        "Version, policy and sampler.",
        "none",
        "hmd_build_info{} * on (instance) group_left (policy) hmd_policy_info{} "
        "* on (instance) group_left (sampler) hmd_sampler_info{}",
        legend="{{version}} {{policy}} {{sampler}}",
        by_name=True,
    ),
]

TIERS = [
    Panel(
        "Memory of targets by tier",
        "Resident pages of all targets, also those never sampled.",
        "bytes",
        (Query("sum by (tier) (hmd_target_resident_bytes{})", "tier {{tier}}"),),
        stack=True,
    ),
    Panel(
        "Accesses by tier",
        "Sampled accesses times the period, by the tier that served them. Where pages were not "
        "yet found, unknown.",
        "suffix: /s",
        (Query("sum by (tier) (rate(hmd_target_accesses_total{}[R]))", "tier {{tier}}"),),
        stack=True,
    ),
    Panel(
        "Hot memory by tier",
        "Pages with at least one access a tick. Hot memory on a slow tier is what could be won.",
        "bytes",
        (
            Query(
                'sum by (tier) (hmd_heat_pages{, heat_log2=~"[0-9]+"}) * 4096',
                "tier {{tier}}",
            ),
        ),
        width=5,
    ),
    Panel(
        "Latency of nodes",
        "What hmd takes a load from an idle node to take. 90 ns where firmware tells nothing.",
        "s",
        (Query("hmd_node_load_latency_seconds{}", "node {{numa_node}}, tier {{tier}}"),),
        kind="bargauge",
        width=3,
    ),
]

TARGETS = [
    Panel(
        "Served by fast memory",
        "Share of each target's recent accesses that the fastest tier served.",
        "percentunit",
        (Query("hmd_target_fast_access_ratio{T}", "{{target}}"),),
        most=1,
    ),
    Panel(
        "Fast memory by target",
        "Resident pages on the fastest tier.",
        "bytes",
        (Query('sum by (target) (hmd_target_resident_bytes{T, tier="0"})', "{{target}}"),),
        stack=True,
    ),
    Panel(
        "Slower memory by target",
        "Resident pages on all other tiers.",
        "bytes",
        (
            Query(
                "sum by (target) (hmd_target_resident_bytes{T}) - "
                'sum by (target) (hmd_target_resident_bytes{T, tier="0"})',
                "{{target}}",
            ),
        ),
        stack=True,
    ),
    Panel(
        "Accesses by target",
        "Sampled accesses times the period.",
        "suffix: /s",
        (Query("sum by (target) (rate(hmd_target_accesses_total{T}[R]))", "{{target}}"),),
    ),
    Panel(
        "Moves by target",
        "Bytes moved up to a faster tier, and (below zero) down to a slower one.",
        "Bps",
        (
            Query("sum by (target) (rate(hmd_target_promoted_bytes_total{T}[R]))", "{{target}} up"),
            Query(
                "sum by (target) (rate(hmd_target_demoted_bytes_total{T}[R]))", "{{target}} down"
            ),
        ),
        below="/ down$/",
    ),
    Panel(
        "Processes and failed pages",
        "Processes of each target, and its pages that could not be moved.",
        "none",
        (
            Query("sum by (target) (hmd_target_processes{T})", "{{target}} processes"),
            Query(
                "sum by (target) (rate(hmd_target_move_failures_total{T}[R]))",
                "{{target}} failed pages/s",
            ),
        ),
    ),
]

MOVES = [
    Panel(
        "Decisions",
        "Pages that plans named, by where they are to go: up to a faster tier, down to a slower "
        "one, or to another node of their tier.",
        "suffix: pages/s",
        (Query("sum by (direction) (rate(hmd_planned_pages_total{}[R]))", "{{direction}}"),),
    ),
    Panel(
        "Moved",
        "Bytes moved from tier to tier, and those sent out to swap or zram.",
        "Bps",
        (
            Query(
                "sum by (from_tier, to_tier) (rate(hmd_moved_bytes_total{}[R]))",
                "tier {{from_tier}} to {{to_tier}}",
            ),
            Query("sum(rate(hmd_paged_out_bytes_total{}[R]))", "paged out"),
        ),
    ),
    Panel(
        "Not tried, and why",
        "Planned pages that were not tried: deferred by the budget, blacklisted after a failure, "
        "there already, or of a dry run.",
        "suffix: pages/s",
        (Query("sum by (reason) (rate(hmd_unmoved_pages_total{}[R]))", "{{reason}}"),),
    ),
    Panel(
        "Failed, and why",
        "Pages that the kernel did not move. docs/metrics.md says what the reasons mean.",
        "suffix: pages/s",
        (Query("sum by (reason) (rate(hmd_move_failures_total{}[R]))", "{{reason}}"),),
    ),
    Panel(
        "Predicted and realised",
        "What moves of late were to save, and what they saved by samples since; below zero what "
        "demotions were to cost, and did. In seconds of waiting loads each second.",
        "suffix: s/s",
        (
            Query("sum(rate(hmd_predicted_saving_seconds_total{}[R]))", "predicted saving"),
            Query("sum(rate(hmd_realised_saving_seconds_total{}[R]))", "realised saving"),
            Query("sum(rate(hmd_predicted_loss_seconds_total{}[R]))", "predicted loss"),
            Query("sum(rate(hmd_realised_loss_seconds_total{}[R]))", "realised loss"),
        ),
        below="/ loss$/",
    ),
    Panel(
        "Ping-pong",
        "Pages that came back within 60 ticks, as a share of all that moved; and calls of "
        "move_pages.",
        "percentunit",
        (
            Query(
                "4096 * sum(rate(hmd_ping_pong_pages_total{}[R])) / "
                "(sum(rate(hmd_moved_bytes_total{}[R])) > 0 or vector(1))",
                "moved back",
            ),
        ),
    ),
]

STAGES = [
    Panel(
        "Samples through the stages",
        "Records that the sampler read, samples of targets among them, and those of known pages.",
        "suffix: /s",
        (
            Query('sum by (stage) (rate(hmd_stage_in_total{, item="samples"}[R]))', "{{stage}} in"),
            Query(
                'sum by (stage) (rate(hmd_stage_out_total{, item="samples"}[R]))', "{{stage}} out"
            ),
        ),
    ),
    Panel(
        "Pages through the stages",
        "Pages that the policy had before it in each tick, those that it planned to move, and "
        "those that moved.",
        "suffix: /s",
        (
            Query('sum by (stage) (rate(hmd_stage_in_total{, item="pages"}[R]))', "{{stage}} in"),
            Query('sum by (stage) (rate(hmd_stage_out_total{, item="pages"}[R]))', "{{stage}} out"),
        ),
    ),
    Panel(
        "Time of stages",
        "Mean time that each stage of a tick took.",
        "s",
        (
            Query(
                "sum by (stage) (rate(hmd_stage_duration_seconds_sum{}[R])) / "
                "sum by (stage) (rate(hmd_stage_duration_seconds_count{}[R]))",
                "{{stage}}",
            ),
        ),
        stack=True,
    ),
    Panel(
        "Time of ticks",
        "Half of all ticks took no longer than the median, one in a hundred longer than p99.",
        "s",
        (
            Query(
                "histogram_quantile(0.5, sum by (le) "
                "(rate(hmd_tick_duration_seconds_bucket{}[R])))",
                "median",
            ),
            Query(
                "histogram_quantile(0.99, sum by (le) "
                "(rate(hmd_tick_duration_seconds_bucket{}[R])))",
                "p99",
            ),
            Query("max(hmd_tick_interval_seconds{})", "interval"),
        ),
    ),
    Panel(
        "Failures of stages",
        "Share of ticks in which a stage failed; the daemon's log says why.",
        "percentunit",
        (
            Query(
                "sum by (stage) (rate(hmd_stage_failures_total{}[R])) / ignoring (stage) "
                "group_left sum(rate(hmd_ticks_total{}[R]))",
                "{{stage}}",
            ),
        ),
        most=1,
    ),
    Panel(
        "Since the last success",
        "Time since each stage last ran without failing.",
        "s",
        (
            Query(
                "time() - min by (stage) (hmd_stage_last_success_timestamp_seconds{})",
                "{{stage}}",
            ),
        ),
    ),
]

SAMPLING = [
    Panel(
        "Samples",
        "Samples of targets; dropped are those of other programs or of the kernel.",
        "suffix: /s",
        (
            Query("sum(rate(hmd_samples_total{}[R]))", "taken"),
            Query("sum(rate(hmd_samples_dropped_total{}[R]))", "dropped"),
        ),
    ),
    Panel(
        "Losses",
        "Samples that a full ring lost, as a share; throttling by the kernel; corrupt records.",
        "none",
        (
            Query(
                "sum(rate(hmd_samples_lost_total{}[R])) / (sum(rate(hmd_samples_lost_total{}[R])) "
                "+ sum(rate(hmd_samples_total{}[R])) > 0 or vector(1))",
                "lost share",
            ),
            Query("sum(rate(hmd_sampler_throttles_total{}[R]))", "throttles/s"),
            Query("sum(rate(hmd_sampler_corrupt_records_total{}[R]))", "corrupt/s"),
        ),
    ),
    Panel(
        "Sampling period",
        "Accesses that one sample stands for (with DAMON milliseconds), between the bounds that "
        "the CPU quota may choose from.",
        "none",
        (
            Query("max(hmd_sampler_period{})", "in force"),
            Query("min(hmd_sampler_period_shortest{})", "shortest"),
            Query("max(hmd_sampler_period_longest{})", "longest"),
        ),
    ),
]

COST = [
    Panel(
        "CPU",
        "Shares of one CPU. The quota (sample: cpu_quota) holds the sum of both by the period.",
        "percentunit",
        (
            Query("sum(rate(hmd_cpu_seconds_total{}[R]))", "daemon"),
            Query("sum(rate(hmd_sampler_cpu_seconds_total{}[R]))", "sampler's threads"),
        ),
        stack=True,
    ),
    Panel(
        "Memory",
        "Resident memory of the daemon, and how much of it is the heat table.",
        "bytes",
        (
            Query("sum(hmd_resident_memory_bytes{})", "resident"),
            Query("sum(hmd_heat_table_bytes{})", "heat table"),
        ),
    ),
    Panel(
        "Calls and reads",
        "Calls of move_pages that moved, and reads of the sampler that found something.",
        "suffix: /s",
        (
            Query("sum(rate(hmd_move_calls_total{}[R]))", "move_pages"),
            Query("sum(rate(hmd_sampler_wakeups_total{}[R]))", "sampler reads"),
        ),
    ),
]

ROWS = {
    "Overview": OVERVIEW,
    "Tiers": TIERS,
    "Targets": TARGETS,
    "Decisions and moves": MOVES,
    "Stages": STAGES,
    "Sampling": SAMPLING,
    "What hmd costs": COST,
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "__inputs": [],
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        ],
        "title": "hmd, heterogeneous memory daemon",
        "uid": "hmd",
        "description": "Tiers, targets, decisions and moves, stages, sampling, own cost of hmd.",
        "tags": ["hmd", "memory", "numa"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": _variables()},
        "annotations": {"list": _annotations()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
        },
        _of_labels("instance", "Machine", "label_values(hmd_build_info, instance)"),
        _of_labels(
            "target", "Target", f"label_values(hmd_target_processes{{{OF_INSTANCE}}}, target)"
        ),
    ]


def _of_labels(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _annotations() -> list[dict[str, Any]]:
    return [
        {
            "name": "Reloads",
            "datasource": SOURCE,
            "enable": True,
            "iconColor": "purple",
            "expr": Query(
                "changes(hmd_config_last_reload_success_timestamp_seconds{}[R]) > 0", ""
            ).text,
            "titleFormat": "{{instance}}: configuration reloaded",
        }
    ]


def _panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, laid out from left to right and then below."""
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        left = 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + panel.height
            number += 1
            yield _panel(panel, number, left, top)
            left += panel.width
        top += panels[-1].height


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.tells,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": [
            {
                "refId": chr(ord("A") + row),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.text,
                "legendFormat": query.legend,
                "range": panel.kind == "timeseries",
                "instant": panel.kind != "timeseries",
            }
            for row, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.steps]
    made: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.names:
        states = {
            value: {"text": text, "color": colour, "index": row}
            for row, (value, text, colour) in enumerate(panel.names)
        }
        made["mappings"] = [{"type": "value", "options": states}]
    if panel.most is not None or panel.stack:
        made["min"] = 0
    if panel.most is not None:
        made["max"] = panel.most
    if panel.kind == "timeseries":
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stack else 10,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    return made


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    if not panel.below:
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": panel.below},
            "properties": [{"id": "custom.transform", "value": "negative-Y"}],
        }
    ]


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "bargauge":
        return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic"}
    return {
        "reduceOptions": reduce,
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "name" if panel.by_name else "auto",
        "orientation": "auto",
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
