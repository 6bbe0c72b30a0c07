# SPDX-License-Identifier: MIT
"""A real Prometheus server on loopback for tests and plots, and queries to it.

``make setup`` unpacks server and promtool of Debian's package into build/prometheus without
installing it, because the package starts a server on all addresses.

The Grafana dashboard as a list of panels whose queries a bare Prometheus can answer.

Takes config/grafana/hmd.json, returns panels; Grafana's variables are replaced as by Grafana with
all machines and all targets selected.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from hmd.base.errors import HmdError, MissingError

T = TypeVar("T")

UNPACKED = Path(__file__).parents[2] / "build/prometheus/usr/bin"


def find_tool(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; raises MissingError without it."""
    path = shutil.which(name, path=f"{UNPACKED}:{os.environ.get('PATH', '')}")
    if path is None:
        raise MissingError(f"{name} is missing: run `make setup` (Debian package prometheus)")
    return path


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and its points as (Unix time, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The latest value."""
        return self.points[-1][1]


class Prometheus:
    """A server that scrapes ``targets`` (addresses by job) into ``folder``; a context manager.

    Raises HmdError where it does not start within ``patience_s``.
    """

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, str],
        rules: Path | None = None,
        *,
        interval_s: int = 1,
        patience_s: float = 60.0,
    ) -> None:
        self._folder, self._patience_s = folder, patience_s
        self.log = folder / "prometheus.log"
        self.file = folder / "prometheus.yml"
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in targets.items()
        ]
        every = f"{interval_s}s"
        # JSON is YAML.
        self.file.write_text(
            json.dumps(
                {
                    "global": {
                        "scrape_interval": every,
                        "scrape_timeout": every,
                        "evaluation_interval": every,
                    },
                    "rule_files": [str(rules)] if rules else [],
                    "scrape_configs": scrapes,
                }
            )
        )

    def __enter__(self) -> Self:
        """Start the server and wait until it answers."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    find_tool("prometheus"),
                    f"--config.file={self.file}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        try:
            self.url = f"http://{self._wait_for(self._address)}"
            self._wait_for(self._ready)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._end()

    def ask(self, expr: str, at_s: float | None = None) -> list[Series]:
        """Return the series of a query at a Unix time, or now.

        Raises HmdError with the server's message for an invalid query.
        """
        when = {} if at_s is None else {"time": str(at_s)}
        data = self.get("query", query=expr, **when)
        if data["resultType"] == "scalar":
            return [Series({}, (_point(data["result"]),))]
        return [Series(one["metric"], (_point(one["value"]),)) for one in data["result"]]

    def ask_range(self, expr: str, begin_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return what a query gives from one Unix time to another."""
        data = self.get(
            "query_range", query=expr, start=str(begin_s), end=str(end_s), step=str(step_s)
        )
        return [Series(one["metric"], tuple(map(_point, one["values"]))) for one in data["result"]]

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an endpoint of /api/v1. Raises HmdError with the server's words."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=self._patience_s) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                reason = json.load(error).get("error", "")
            raise HmdError(f"Prometheus refuses {path} {parameters}: {reason}") from None
        return document["data"]

    def _address(self) -> str:
        """Return where it listens, by its log; empty as long as it does not say."""
        for line in self.log.read_text().splitlines():
            if 'msg="Listening on"' in line:
                return line.split(" address=")[1].split()[0]
        return ""

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=self._patience_s):
                return True
        except OSError:
            return False

    def _wait_for(self, what: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self._patience_s
        while time.monotonic() < deadline_s and self._process.poll() is None:
            if answer := what():
                return answer
            time.sleep(0.05)
        raise HmdError(f"Prometheus does not come up: {self.log.read_text()[-500:]}")

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _point(pair: tuple[float, str]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


DASHBOARD = Path(__file__).parents[2] / "config/grafana/hmd.json"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel: its row, title, kind and queries.

    ``raw`` is the panel in Grafana's JSON, with its position on a grid of 24 columns.
    """

    row: str
    title: str
    kind: str
    queries: tuple[PanelQuery, ...]
    raw: dict[str, Any]


def panels(file: Path = DASHBOARD, rate_interval: str = "1m") -> list[DashboardPanel]:
    """Return the panels of a dashboard in order."""
    row, found = "", []
    for raw in json.loads(file.read_text())["panels"]:
        if raw["type"] == "row":
            row = raw["title"]
            continue
        queries = tuple(
            PanelQuery(chosen(target["expr"], rate_interval), target["legendFormat"])
            for target in raw["targets"]
        )
        found.append(DashboardPanel(row, raw["title"], raw["type"], queries, raw))
    return found


def chosen(expr: str, rate_interval: str) -> str:
    """Return a query with Grafana's variables replaced: everything is selected."""
    for name, value in (
        ("$__rate_interval", rate_interval),
        ("$instance", ".*"),
        ("$target", ".*"),
    ):
        expr = expr.replace(name, value)
    return expr
