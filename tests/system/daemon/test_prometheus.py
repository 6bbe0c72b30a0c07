# SPDX-License-Identifier: MIT
"""A real Prometheus scrapes a real daemon: rules, and every query of the dashboard and the alerts.

The daemon has one memory node here and moves nothing, so a synthetic one runs as well: an
observer of a policy at work on two tiers, of which each scrape sees the next tick. The daemon that
migrates for real is in tests/vm/dram_pm/test_prometheus.py.
"""

import json
import math
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.monitoring.prometheus import DASHBOARD, Prometheus, chosen, find_tool, panels
from hmd.base.errors import HmdError, MissingError
from hmd.metrics.exporter import MetricsServer
from hmd.metrics.status import TickWatch
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler
from tests.fakes.free_port import free_port
from tests.system.daemon.conftest import FAULTER, Daemon, wait_for
from tests.system.daemon.observed_run import ObservedRun

CONFIG = Path(__file__).parents[3] / "config/prometheus"
RULES = CONFIG / "hmd-alerts.yml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
QUERIES = [
    pytest.param(query.expr, id=f"{panel.row}-{panel.title}-{number}")
    for panel in panels(rate_interval="20s")
    for number, query in enumerate(panel.queries)
]


@pytest.fixture(scope="module")
def daemon(module_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with samples: its target faults pages in for ever."""
    with subprocess.Popen([sys.executable, "-c", FAULTER], stdout=subprocess.PIPE) as faulter:
        try:
            module_daemon.configure(f"[{{name: faulter, pid: {faulter.pid}, never_slow: true}}]")
            module_daemon.start()
            module_daemon.wait_ready()
            yield module_daemon
        finally:
            faulter.kill()


@pytest.fixture(scope="module")
def synthetic() -> Iterator[MetricsServer]:
    sampler = open_sampler(SampleSettings(sampler="faults", period=1)).sampler
    server = MetricsServer(
        f"127.0.0.1:{free_port()}", ObservedRun(sampler).latest, TickWatch().health
    )
    yield server
    server.close()
    sampler.close()


@pytest.fixture(scope="module")
def prometheus(
    daemon: Daemon, synthetic: MetricsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A server that has scraped both some times."""
    folder = tmp_path_factory.mktemp("prometheus")
    targets = {"hmd": daemon.address, "synthetic": synthetic.address}
    with Prometheus(folder, targets, RULES) as prometheus:
        for what in (
            'rate(hmd_target_accesses_total{tier="0", job="hmd"}[20s])',
            "rate(hmd_ping_pong_pages_total[20s])",
            "rate(hmd_realised_saving_seconds_total[20s])",
        ):
            wait_for(partial(prometheus.ask, f"{what} > 0"), what)
        yield prometheus


def promtool(*arguments: str | Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [find_tool("promtool"), *map(str, arguments)],
        input=text,
        text=True,
        capture_output=True,
        check=False,
    )


def test_promtool_check_metrics_reports_nothing(daemon: Daemon) -> None:
    with urllib.request.urlopen(f"http://{daemon.address}/metrics", timeout=20) as answer:
        done = promtool("check", "metrics", text=answer.read().decode())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "hmd-alerts.yml"),
        ("test", "rules", "hmd-alerts-test.yml"),
        ("test", "rules", "hmd-alerts-days-test.yml"),
    ],
    ids="-".join,
)
def test_promtool_accepts_configuration_and_rules(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments[:-1], CONFIG / arguments[-1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_all_have_a_unit_test() -> None:
    tests = "".join(path.read_text() for path in CONFIG.glob("hmd-alerts-*test.yml"))
    untested = [name for name in ALERTS if f'alertname="{name}", alertstate="firing"' not in tests]
    assert not untested


def test_alerts_all_have_severity_and_action() -> None:
    for name, rule in ALERTS.items():
        assert set(rule["annotations"]) == {"summary", "description", "action"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert "$labels.instance" in rule["annotations"]["summary"], name


@pytest.mark.parametrize("expr", QUERIES)
def test_dashboard_query_returns_data(prometheus: Prometheus, expr: str) -> None:
    answer = prometheus.ask(expr)
    assert answer, expr
    assert any(math.isfinite(series.last) for series in answer), expr


def test_state_panel_shows_no_other_jobs(prometheus: Prometheus) -> None:
    """Both servers are up; the second is another job, as node_exporter would be."""
    (state,) = [panel for panel in panels(rate_interval="20s") if panel.title == "State"]
    (query,) = state.queries
    assert [series.labels["job"] for series in prometheus.ask(query.expr)] == ["hmd"]


def test_share_of_lost_samples_has_one_population(prometheus: Prometheus) -> None:
    """Rings lose samples of all programs, so that the divisor holds other programs' too."""
    (losses,) = [panel for panel in panels(rate_interval="20s") if panel.title == "Losses"]
    exprs = [losses.queries[0].expr, ALERTS["HmdSamplesLost"]["expr"]]
    for expr in exprs:
        assert set(re.findall(r"hmd_samples\w*", expr)) == {
            "hmd_samples_lost_total",
            "hmd_samples_dropped_total",
            "hmd_samples_total",
        }
        prometheus.ask(expr)


def test_dashboard_variables_list_instances_and_targets(
    prometheus: Prometheus, daemon: Daemon, synthetic: MetricsServer
) -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    found = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            inside = chosen(variable["definition"], "20s").removeprefix("label_values(")
            selector, label = inside.removesuffix(")").rsplit(", ", 1)
            found[variable["name"]] = prometheus.get(
                f"label/{label}/values", **{"match[]": selector}
            )
    instances = sorted((daemon.address, synthetic.address))
    assert found == {"instance": instances, "target": ["faulter", "synthetic"]}
    for annotation in dashboard["annotations"]["list"]:
        prometheus.ask(chosen(annotation["expr"], "20s"))


@pytest.mark.parametrize("name", ALERTS)
def test_alert_evaluates_without_error(prometheus: Prometheus, name: str) -> None:
    prometheus.ask(ALERTS[name]["expr"])

    def evaluated() -> Any:
        groups = prometheus.get("rules")["groups"]
        rule = next(r for g in groups for r in g["rules"] if r["name"] == name)
        return rule if rule["health"] != "unknown" else None

    assert wait_for(evaluated, "an evaluation")["health"] == "ok"


def test_prometheus_ask_with_invalid_query_raises(prometheus: Prometheus) -> None:
    with pytest.raises(HmdError, match="parse error"):
        prometheus.ask("rate(hmd_ticks_total)[1m]")


def test_prometheus_with_invalid_rules_fails_to_start(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: 7\n")
    with pytest.raises(HmdError, match="does not come up"), Prometheus(tmp_path, {}, rules):
        pass


def test_find_tool_missing_names_make_setup() -> None:
    with pytest.raises(MissingError, match="run `make setup`"):
        find_tool("prometheus-of-another-name")


def test_prometheus_scrape_matches_daemon_metrics(prometheus: Prometheus, daemon: Daemon) -> None:
    assert [series.last for series in prometheus.ask("up")] == [1, 1]
    assert [series.last for series in prometheus.ask('hmd_tiers{job="hmd"}')] == [1]
    before = daemon.metric("hmd_ticks_total")

    def caught_up() -> bool:
        return prometheus.ask('hmd_ticks_total{job="hmd"}')[0].last > before

    wait_for(caught_up, "the next scrape")
    assert prometheus.ask('hmd_ticks_total{job="hmd"}')[0].last <= daemon.metric("hmd_ticks_total")
    labels = prometheus.ask('hmd_target_accesses_total{tier="0", job="hmd"}')[0].labels
    assert (labels["target"], labels["job"]) == ("faulter", "hmd")


def test_realised_saving_is_positive_and_below_predicted(prometheus: Prometheus) -> None:
    predicted, realised = (
        prometheus.ask(f'hmd_{what}_saving_seconds_total{{job="synthetic"}}')[0].last
        for what in ("predicted", "realised")
    )
    # The hot set leaves after four ticks, moves are followed for sixty.
    assert 0 < realised < predicted


def test_failed_reload_raises_pending_alert(prometheus: Prometheus, daemon: Daemon) -> None:
    whole = daemon.config.read_text()
    daemon.config.write_text(whole + "tick: soon\n")
    try:
        assert daemon.process is not None
        daemon.process.send_signal(1)

        def pending() -> Any:
            return prometheus.ask('ALERTS{alertname="HmdReloadFailed", alertstate="pending"}')

        wait_for(pending, "the alert")
    finally:
        daemon.config.write_text(whole)
