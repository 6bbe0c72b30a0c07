# SPDX-License-Identifier: MIT
"""Metrics as Prometheus reads them: parsed, named by the conventions, bounded, zero at start."""

import gzip
import http.client
import re
import socket
import stat
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import hmd
from hmd.base.errors import HmdError
from hmd.heat.settings import HeatStats
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics import exporter
from hmd.metrics.counters import OTHER
from hmd.metrics.exporter import MetricsFile, MetricsServer, accepted_format, families
from hmd.metrics.observer import ObservedConfig, Observer, ResidencyCounts
from hmd.metrics.status import HEAT_LOG2, MAX_TARGETS, Status, TickWatch
from hmd.metrics.tick_record import TickRecord
from hmd.policy.plan import Plan
from tests.fakes.free_port import free_port
from tests.unit.metrics.conftest import QuietSampler, batch

UNITS = ("seconds", "bytes", "pages", "ratio", "total", "info")

STATS = HeatStats(
    changes=4, page_slots_reassigned=5, page_slots_dropped=3, page_slots=2048, bytes=77
)


@pytest.fixture
def server(observer: Observer) -> Iterator[MetricsServer]:
    server = MetricsServer(f"127.0.0.1:{free_port()}", lambda: observer.latest, TickWatch().health)
    yield server
    server.close()


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def value(text: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    raise AssertionError(f"no {name}{labels}")


def test_metrics_before_first_tick_all_zero(server: MetricsServer) -> None:
    text = scrape(server)
    labels = {"from_numa_node": "0", "to_numa_node": "3", "from_tier": "0", "to_tier": "1"}
    assert value(text, "hmd_moved_bytes_total", **labels) == 0
    assert value(text, "hmd_move_failures_total", reason="no_memory") == 0
    assert value(text, "hmd_target_accesses_total", target="redis", tier="unknown") == 0
    assert value(text, "hmd_target_resident_bytes", target="batch", tier="1") == 0
    assert value(text, "hmd_stage_failures_total", stage="decide") == 0
    assert value(text, "hmd_stage_in_total", stage="heat", item="samples") == 0
    assert value(text, "hmd_planned_pages_total", direction="up") == 0
    assert value(text, "hmd_unmoved_pages_total", reason="deferred") == 0
    assert value(text, "hmd_realised_saving_seconds_total") == 0
    assert value(text, "hmd_heat_pages", tier="1", heat_log2="-8") == 0
    assert value(text, "hmd_tick_duration_seconds_count") == 0
    assert value(text, "hmd_config_last_reload_successful") == 1


def test_metrics_show_version_revision_and_own_process(server: MetricsServer) -> None:
    text = scrape(server)
    assert value(text, "hmd_build_info", version=hmd.__version__, revision=hmd.revision()) == 1
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    assert value(text, "process_open_fds") > 2


def test_metrics_file_is_readable_by_all_and_goes_with_the_daemon(
    observer: Observer, tmp_path: Path
) -> None:
    path = tmp_path / "hmd.prom"
    file = MetricsFile(path, lambda: observer.latest)
    try:
        text = path.read_text()
        assert value(text, "hmd_config_last_reload_successful") == 1
        assert "\nprocess_" not in text  # node_exporter has those of itself
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        file.close()
    assert list(tmp_path.iterdir()) == []


def test_metrics_file_is_written_again(
    observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick: TickRecord
) -> None:
    monkeypatch.setattr(exporter, "FILE_PERIOD_S", 0.01)
    path = tmp_path / "hmd.prom"
    file = MetricsFile(path, lambda: observer.latest)
    try:
        observer.observe(tick, None)
        while value(path.read_text(), "hmd_move_failures_total", reason="busy") != 1:
            time.sleep(0.01)
    finally:
        file.close()


def test_metrics_file_in_missing_folder_is_an_error(observer: Observer, tmp_path: Path) -> None:
    with pytest.raises(HmdError, match=r"cannot write .*none/hmd\.prom: No such file"):
        MetricsFile(tmp_path / "none/hmd.prom", lambda: observer.latest)


def test_metrics_after_tick_show_its_counts(
    server: MetricsServer, observer: Observer, tick: TickRecord
) -> None:
    heat = np.arange(2 * len(HEAT_LOG2)).reshape(2, -1)
    observer.observe(tick, ResidencyCounts(np.array([[4, 0, 2, 0], [0, 0, 0, 1]]), heat, STATS))
    text = scrape(server)
    assert value(text, "hmd_heat_table_bytes") == 77
    assert value(text, "hmd_heat_detail_chunks") == 2048
    assert value(text, "hmd_heat_changed_processes_total") == 4
    assert value(text, "hmd_heat_detail_dropped_chunks_total") == 3
    assert value(text, "hmd_heat_detail_lost_chunks_total") == 5
    labels = {"from_numa_node": "2", "to_numa_node": "0", "from_tier": "1", "to_tier": "0"}
    assert value(text, "hmd_moved_bytes_total", **labels) == 512 * 4096
    assert value(text, "hmd_target_promoted_bytes_total", target="redis") == 512 * 4096
    assert value(text, "hmd_target_accesses_total", target="redis", tier="0") == 30
    assert value(text, "hmd_target_fast_access_ratio", target="redis") == 0.75
    assert value(text, "hmd_move_failures_total", reason="busy") == 1
    assert value(text, "hmd_stage_failures_total", stage="decide") == 1
    assert value(text, "hmd_stage_duration_seconds_bucket", stage="migrate", le="0.025") == 1
    assert value(text, "hmd_stage_duration_seconds_bucket", stage="migrate", le="0.01") == 0
    assert value(text, "hmd_heat_pages", tier="1", heat_log2="15") == 47
    assert value(text, "hmd_target_resident_bytes", target="redis", tier="0") == 4 * 4096
    assert value(text, "hmd_node_tier", numa_node="3") == 1
    assert value(text, "hmd_sampler_info", sampler="pmu") == 1
    assert value(text, "hmd_stage_out_total", stage="heat", item="samples") == 5
    assert value(text, "hmd_planned_pages_total", direction="up") == 513
    assert value(text, "hmd_last_tick_timestamp_seconds") >= value(text, "hmd_start_time_seconds")
    assert value(text, "hmd_tiers") == 2
    assert value(text, "hmd_node_memory_bytes", numa_node="2", tier="1") == 4 << 30
    assert value(text, "hmd_node_load_latency_seconds", numa_node="2", tier="1") == 90e-9
    assert value(text, "hmd_policy_info", policy="histogram") == 1
    assert value(text, "hmd_sampler_period_longest") == 1009
    assert value(text, "hmd_samples_lost_total") == 1
    assert value(text, "hmd_resident_memory_bytes") > 1 << 20
    assert value(text, "hmd_cpu_seconds_total") > 0
    assert value(text, "hmd_sampler_cpu_seconds_total") == 1.5


def test_metrics_failed_reload_shown(server: MetricsServer, observer: Observer) -> None:
    observer.record_reload("broken")
    assert value(scrape(server), "hmd_config_last_reload_successful") == 0


@pytest.fixture
def every_family(observer: Observer, tick: TickRecord) -> list[Metric]:
    return list(families(observer.observe(tick, None)))


def test_metric_names_follow_prometheus_conventions(every_family: list[Metric]) -> None:
    assert every_family
    for family in every_family:
        assert re.fullmatch(r"hmd_[a-z0-9_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"(milli|micro|kilo|mega|_ms|_kb|_count$|percent)", family.name)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        else:
            assert not family.name.endswith("_total")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_metric_labels_never_name_a_process(every_family: list[Metric]) -> None:
    labels = {name for f in every_family for sample in f.samples for name in sample.labels}
    assert labels <= {
        *(
            "version",
            "revision",
            "policy",
            "stage",
            "item",
            "sampler",
            "target",
            "tier",
            "reason",
            "direction",
        ),
        *("heat_log2", "le", "work", "of"),
        *("numa_node", "from_numa_node", "to_numa_node", "from_tier", "to_tier"),
    }


def test_metrics_page_has_no_created_series(server: MetricsServer) -> None:
    assert "_created" not in scrape(server)


def test_metrics_server_busy_port_reported(server: MetricsServer, observer: Observer) -> None:
    expected = rf"cannot serve metrics on {server.address}: Address already in use; set observe"
    with pytest.raises(HmdError, match=expected):
        MetricsServer(server.address, lambda: observer.latest, TickWatch().health)


def test_metrics_server_closed_port_free(observer: Observer) -> None:
    address = f"127.0.0.1:{free_port()}"
    for _ in range(2):
        MetricsServer(address, lambda: observer.latest, TickWatch().health).close()


def test_metrics_10000_processes_series_bounded(topology: Topology) -> None:
    count = 10_000
    names = tuple(f"t{number % 1000}" for number in range(count))
    observer = Observer(
        ObservedConfig("hmd.yaml", False, 1.0, 0.01, 0.01, "histogram", names),
        topology,
        QuietSampler(),
    )
    tick = TickRecord(
        now_s=1.0,
        processes=tuple(ProcessId(number, 1) for number in range(count)),
        targets=names,
        batch=batch(list(range(count))),
        node=np.zeros(count, np.int16),
        plan=Plan.empty(),
        outcome=None,
    )
    places = ResidencyCounts(
        np.ones((count, 4), np.int64), np.zeros((2, len(HEAT_LOG2)), np.int64), STATS
    )
    few = sum(len(family.samples) for family in families(observer.latest))
    now = observer.observe(tick, places)
    many = sum(len(family.samples) for family in families(now))
    # 64 targets and "other" existed before; what came is the share that the fast tier served.
    assert many == few + MAX_TARGETS + 1 < 1600
    processes = {target.name: target.process_count for target in now.targets}
    assert len(processes) == MAX_TARGETS + 1
    assert (processes["t0"], processes[OTHER]) == (10, count - 10 * MAX_TARGETS)


def request(server: MetricsServer, **headers: str) -> tuple[int, bytes]:
    """Return status and body, with these headers."""
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request(
            "GET", "/metrics", headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_metrics_of_a_foreign_name_refused(server: MetricsServer) -> None:
    """A web page whose name resolves to this machine reads nothing."""
    assert request(server, Host="evil.example:9742") == (
        421,
        b"ask for an address, or add the name to observe.metrics_names\n",
    )
    server.names = ("node7.example",)
    assert request(server, Host="node7.example:9742")[0] == 200
    assert request(server, Host=socket.gethostname())[0] == 200
    assert request(server, Host="10.0.0.1")[0] == 200


def test_metrics_server_name_that_cannot_be_encoded_reported(observer: Observer) -> None:
    with pytest.raises(HmdError, match=r"cannot serve metrics on a\.\.b:9742: .*; set observe"):
        MetricsServer("a..b:9742", lambda: observer.latest, TickWatch().health)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", ""),
        ("*/*", ""),
        ("text/plain;version=0.0.4", ""),
        ("application/openmetrics-text;version=1.x", ""),
        ("application/openmetrics-text;version=0.0.1", ""),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0",
        ),
        (
            "application/openmetrics-text; version=2.0.0, text/plain; version=1.0.0",
            "text/plain; version=1.0.0",
        ),
    ],
)
def test_accepted_format_is_one_of_three(accept: str, expected: str) -> None:
    assert accepted_format(accept) == expected


def test_metrics_kept_in_three_formats_whatever_clients_accept(server: MetricsServer) -> None:
    names = ("application/openmetrics-text", "text/plain")
    versions = ("1.0.0", "1.0.1", "1.7", "1.x", "9" * 5000, "\xd9\xa3", "0.0.4", "")
    for name in names:
        for version in versions:
            assert request(server, Accept=f"{name};version={version};escaping=x")[0] == 200
    assert len(server._rendered) <= 3


def test_metrics_scraped_often_rendered_once_per_snapshot(
    server: MetricsServer, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Status] = []

    def counted(now: Status) -> Iterator[Metric]:
        rendered.append(now)
        return families(now)

    monkeypatch.setattr("hmd.metrics.exporter.families", counted)
    for _ in range(5):
        assert request(server)[0] == 200
    assert len(rendered) == 1
    packed = [request(server, Accept_Encoding="gzip")[1] for _ in range(3)]
    assert gzip.decompress(packed[0]).startswith(b"# HELP hmd_")
    assert len(rendered) == 2
    observer.record_reload("broken")
    assert value(scrape(server), "hmd_config_last_reload_successful") == 0
    assert len(rendered) == 3
