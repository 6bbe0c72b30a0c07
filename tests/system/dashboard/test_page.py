# SPDX-License-Identifier: MIT
"""The page in a real Chromium with a real status socket: contents, layout and accessibility."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hmd.cli.output import format_bytes, format_count, format_share
from hmd.control.status_json import status_answer
from hmd.control.status_socket import StatusSocket
from hmd.dashboard.http_server import JSON, Content, PageServer, page_contents
from hmd.dashboard.poller import Poller
from tests.system.dashboard.chromium import Chromium
from tests.unit.dashboard.conftest import Serve
from tests.unit.dashboard.machine import Machine

PICTURES = Path(__file__).parents[3] / "build/dashboard"
READY = (
    "document.body?.dataset.state === 'live' && "
    "document.getElementById('heat-high').textContent !== ''"
)
TEXTS = """
[...document.querySelectorAll(%s)].map((cell) => cell.textContent.trim().replaceAll('\\u2009', ' '))
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def browser(chromium: Chromium) -> Chromium:
    chromium.open("about:blank")
    chromium.wrong.clear()
    chromium.requested.clear()
    chromium.screen(1280, 900)
    return chromium


def texts(browser: Chromium, selector: str) -> list[str]:
    found: list[str] = browser.run(TEXTS % json.dumps(selector))
    return found


def focus(browser: Chromium, identity: str) -> None:
    browser.run(f"document.getElementById('{identity}').focus()")


def press(browser: Chromium, *keys: str) -> None:
    for key in keys:
        text = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)


def test_page_shows_the_values_of_the_status_socket(
    browser: Chromium, serve: Serve, watched: Poller, sweep: bytes, machine: Machine
) -> None:
    served = serve(watched, sweep)
    browser.open(served.server.url)
    browser.wait_for(READY)
    status: dict[str, Any] = json.loads(status_answer(machine.observer.latest))
    assert texts(browser, "#state") == ["Live"]
    facts = dict(zip(texts(browser, "#facts dt"), texts(browser, "#facts dd"), strict=True))
    assert facts["Process"] == str(status["pid"])
    assert facts["Policy"] == "histogram"
    assert facts["Ticks"] == f"{format_count(status['ticks'])} of 1 s"
    targets = sorted(status["targets"], key=lambda t: -sum(t["resident_bytes"]))
    assert texts(browser, "#targets tbody tr") == [
        "".join(
            [
                t["name"],
                "1",
                *map(format_bytes, t["resident_bytes"]),
                format_share(t["fast_share"]),
                format_bytes(t["promoted_bytes"]),
                format_bytes(t["demoted_bytes"]),
                format_count(t["failed_pages"]),
            ]
        )
        for t in targets
    ]
    used = [sum(t["resident_bytes"][tier] for t in targets) for tier in (0, 1)]
    assert texts(browser, ".tier .num") == [
        f"{format_bytes(size)} of {format_bytes(whole)}"
        for size, whole in zip(used, status["tier_bytes"], strict=True)
    ]
    keys = dict(zip(texts(browser, "#keys dt"), texts(browser, "#keys dd.value"), strict=True))
    assert keys["Promoted"] == format_bytes(status["moves"]["promoted_bytes"])
    assert keys["Demoted"] == format_bytes(status["moves"]["demoted_bytes"])
    assert keys["Not moved"] == format_bytes(status["moves"]["failed_pages"] * 4096)
    assert keys["Samples"] == format_count(status["sampler"]["samples"])
    assert browser.run("document.getElementById('notices').hidden")
    assert browser.wrong == []
    assert all(url.startswith(served.server.url) for url in browser.requested[1:])


def test_page_lists_moves_and_failures_with_reasons(
    browser: Chromium, serve: Serve, watched: Poller, machine: Machine
) -> None:
    browser.open(serve(watched).server.url)
    browser.wait_for(READY)
    last = json.loads(status_answer(machine.observer.latest))["rounds"][-1]
    heat = {(f["to_node"] == 0): f["heat"] for f in last["flows"]}
    rows = texts(browser, "#rounds tbody tr")
    assert len(rows) >= len(last["flows"])
    for row, flow in zip(rows, last["flows"], strict=False):
        assert flow["target"] in row
        assert f"node {flow['from_node']} → {flow['to_node']}" in row
        assert format_bytes(flow["planned_pages"] * 4096) in row
    if len(heat) == 2:
        assert any("times as hot" in row for row in rows)
    browser.run("document.getElementById('failures').open = true")
    browser.wait_for("document.querySelector('#failures tbody tr') !== null")
    busy = machine.observer.latest.moves.pages_by_status["busy"]
    assert busy > 0
    assert texts(browser, "#failures tbody tr") == [
        f"busy{format_count(busy)}pinned or isolated (EBUSY), or the kernel gave up after retries"
    ]


def test_page_charts_have_equivalent_tables(
    browser: Chromium, serve: Serve, watched: Poller, sweep: bytes
) -> None:
    browser.open(serve(watched, sweep).server.url)
    browser.wait_for(READY)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for table in ("share", "heat", "moves", "census", "sweep"):
        browser.wait_for(f"document.querySelectorAll('#{table}-table tbody tr').length > 5")
    series = json.loads(watched.state())["series"]
    assert len(texts(browser, "#share-table tbody tr")) == len(series["at_s"])
    newest = texts(browser, "#share-table tbody tr:first-child td")
    assert newest[1:] == [format_share(t["fast_share"][-1]) for t in series["targets"]]
    assert len(texts(browser, "#sweep-table tbody tr")) == 21
    key = browser.run("document.getElementById('process').value")
    heat = json.loads(watched.heat(key) or b"")
    assert texts(browser, "#heat-table tbody th") == heat["address"][::-1]
    assert browser.run(
        "[...document.querySelectorAll('table')].every((t) => t.querySelector('th[scope=col]') && "
        "[...t.tBodies[0].rows].every((r) => r.querySelector('th[scope=row]')))"
    )
    assert browser.wrong == []


def test_page_without_traces_shows_the_command_for_a_sweep(
    browser: Chromium, serve: Serve, watched: Poller
) -> None:
    browser.open(serve(watched).server.url)
    browser.wait_for(READY)
    assert texts(browser, "#sweep code") == ["hmd dashboard --traces slow.hmdt fast.hmdt"]


def test_page_is_operable_by_keyboard(
    browser: Chromium, serve: Serve, watched: Poller, sweep: bytes
) -> None:
    browser.open(serve(watched, sweep).server.url)
    browser.wait_for(READY)
    press(browser, "Tab")
    assert browser.run("document.activeElement.className") == "skip"
    focus(browser, "share")
    press(browser, "Home")
    first = texts(browser, "#share .when")
    press(browser, "ArrowRight")
    assert texts(browser, "#share .when") != first
    focus(browser, "heat")
    press(browser, "ArrowUp", "ArrowLeft")
    heat = json.loads(watched.heat(browser.run("document.getElementById('process').value")) or b"")
    read = texts(browser, "#heat-read")[0]
    assert read.startswith(f"{heat['address'][1]}, ")
    assert "heat " in read
    focus(browser, "pause")
    press(browser, "Enter")
    assert texts(browser, "#state") == ["Paused: the data is not updated."]
    assert browser.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"


def test_page_is_structured_for_screen_readers(
    browser: Chromium, serve: Serve, watched: Poller
) -> None:
    browser.open(serve(watched).server.url)
    browser.wait_for(READY)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = [role for role, _ in named]
    for role in ("banner", "main", "contentinfo"):
        assert roles.count(role) == 1
    regions = {name for role, name in named if role == "region"}
    assert {"Tiers", "Targets", "Heat over time", "Moves and reasons"} <= regions
    for role in ("button", "combobox", "link", "region", "table"):
        assert all(name for each, name in named if each == role), role
    charts = "[...document.querySelectorAll('[role=group]')]"
    assert browser.run(f"{charts}.length") == 5
    assert browser.run(f"{charts}.every((c) => c.ariaLabel && c.tabIndex === 0)")
    headings = browser.run("[...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])")
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))
    assert browser.run("document.documentElement.lang") == "en"
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.call("Emulation.setEmulatedMedia", features=still)
    assert browser.run("document.getAnimations().length") == 0


# Contrast by WCAG 2.1 of every text with what is painted behind it.
CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.classList.contains("same")) continue;
    const style = getComputedStyle(e);
    const ink = light(rgb(e instanceof SVGElement ? style.fill : style.color));
    const paper = light(behind(e));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) low.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return low;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_layout_fits_width_and_has_contrast(
    browser: Chromium, serve: Serve, watched: Poller, sweep: bytes, width: int, dark: bool
) -> None:
    browser.screen(width, 900, dark)
    browser.open(serve(watched, sweep).server.url)
    browser.wait_for(READY)
    assert browser.run(CONTRAST) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(16, 18, 23)" if dark else "rgb(245, 245, 242)")
    file = PICTURES / f"page-{width}-{'dark' if dark else 'light'}.png"
    browser.picture(file)
    assert file.stat().st_size > 50_000
    assert browser.wrong == []


def test_page_escapes_names_with_markup(
    browser: Chromium, serve: Serve, machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched
    evil = "<img src=x onerror=document.title='pwned'><script>1</script>"
    text = status_answer(machine.observer.latest).decode().replace('"redis"', json.dumps(evil))
    text = text.replace('"redis-server"', json.dumps(evil)).replace('"histogram"', json.dumps(evil))
    daemon = StatusSocket(
        tmp_path / "s",
        {
            "status": lambda _: text.encode(),
            "heatmap": lambda asked: machine.heat_map.answer(asked.arguments),
        },
    )
    watch = Poller(tmp_path / "s", 600)
    watch.poll()
    browser.open(serve(watch).server.url)
    browser.wait_for(READY)
    assert evil in "".join(texts(browser, "#targets tbody th"))
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0
    assert browser.run("document.title") == "hmd"
    assert browser.wrong == []
    daemon.close()


def test_page_without_heat_says_so_in_the_scale(
    browser: Chromium, serve: Serve, machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched

    def cold(arguments: Mapping[str, Any]) -> bytes:
        known = json.loads(machine.heat_map.answer(arguments))
        for moment in known["moments"]:
            for process in moment["processes"]:
                process["heat"] = [0.0] * len(process["heat"])
        return json.dumps(known).encode()

    daemon = StatusSocket(
        tmp_path / "s",
        {
            "status": lambda _: status_answer(machine.observer.latest),
            "heatmap": lambda asked: cold(asked.arguments),
        },
    )
    watch = Poller(tmp_path / "s", 600)
    watch.poll()
    browser.open(serve(watch).server.url)
    browser.wait_for(READY)
    assert texts(browser, "#heat-low, #heat-high") == ["", "no samples yet"]
    daemon.close()


def test_page_reports_daemon_lost_and_recovered(
    browser: Chromium, serve: Serve, machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched
    watch = Poller(tmp_path / "s", 600)
    watch.poll()
    browser.open(serve(watch).server.url)
    browser.wait_for("document.body?.dataset.state === 'lost'")
    assert texts(browser, "#state") == ["No daemon answers; trying again."]
    assert "start one (hmd run --config FILE" in texts(browser, "#notices li")[0]
    assert not browser.run("document.getElementById('figures').checkVisibility()")
    answers = {
        "status": lambda _: status_answer(machine.observer.latest),
        "heatmap": lambda asked: machine.heat_map.answer(asked.arguments),
    }
    daemon = StatusSocket(tmp_path / "s", answers)
    watch.poll()
    browser.wait_for(READY)
    assert browser.run("document.getElementById('notices').hidden")
    daemon.close()
    watch.poll()
    browser.wait_for("document.body.dataset.state === 'lost'")
    assert "The data below is old" in texts(browser, "#state")[0]
    assert len(texts(browser, "#targets tbody tr")) == 3
    daemon = StatusSocket(tmp_path / "s", answers)
    watch.poll()
    browser.wait_for(READY)
    daemon.close()
    assert browser.wrong == []


def test_page_reconnects_to_restarted_server(browser: Chromium, watched: Poller) -> None:
    contents = {
        **page_contents(),
        "/state.json": Content(JSON, lambda _: watched.state()),
        "/heat.json": Content(JSON, lambda query: watched.heat(query.get("process", ""))),
        "/sweep.json": Content(JSON, lambda _: b"null"),
    }
    port = 0
    for _ in range(2):
        server = PageServer("127.0.0.1", port, contents)
        port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        if not browser.requested:
            browser.open(server.url)
        browser.wait_for(READY)
        server.shutdown()
        thread.join()
        server.server_close()
        browser.wait_for("document.body.dataset.state === 'lost'")
        assert "hmd dashboard does not answer" in texts(browser, "#state")[0]
    assert all("ERR_CONNECTION_REFUSED" in error for error in browser.wrong)


def test_page_notices_name_each_problem(
    browser: Chromium, serve: Serve, machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched
    status = json.loads(status_answer(machine.observer.latest))
    status["dry_run"], status["sampler"]["name"] = True, "faults"
    # Three of four samples of all programs were lost; most of those read were of other programs.
    status["sampler"] |= {"samples": 100, "dropped": 900, "lost": 3000}
    status["reload"] = {"successful": False, "success_s": 0, "error": "f:1: wrong"}
    status["stage_failures"]["decide"] = 3
    daemon = StatusSocket(
        tmp_path / "s",
        {
            "status": lambda _: json.dumps(status).encode(),
            "heatmap": lambda asked: machine.heat_map.answer(asked.arguments),
        },
    )
    watch = Poller(tmp_path / "s", 600)
    watch.poll()
    browser.open(serve(watch).server.url)
    browser.wait_for(READY)
    notices = " ".join(texts(browser, "#notices li"))
    for part in ("Dry run", "No PMU", "f:1: wrong", "decide 3", "75.0 % of the samples"):
        assert part in notices
    daemon.close()
