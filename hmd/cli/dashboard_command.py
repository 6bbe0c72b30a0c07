# SPDX-License-Identifier: MIT
"""``hmd dashboard``: a live page of the daemon's state, for a browser on this machine."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.base.errors import UnreachableError
from hmd.cli.arguments import number
from hmd.cli.main import build_parser
from hmd.cli.output import plain
from hmd.control.client import ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hmd.dashboard.http_server import Content

DEFAULT_LISTEN = "127.0.0.1:9743"

DESCRIPTION = """\
Serve a web page that shows live what the daemon does: tiers, targets, heat and fast share over the
last minutes, moves and their reasons; with two traces of a program, how much fast memory it needs.

The page is read-only and served on loopback: from another machine, use ssh -L 9743:127.0.0.1:9743.
It is for root, for you, and with sudo for the user who called sudo. If no daemon runs yet, the
page waits for one.
"""

EXAMPLES = f"""\
examples:
  hmd dashboard                                  then open http://{DEFAULT_LISTEN}/
  hmd dashboard --listen 127.0.0.1:8000 --minutes 60
  hmd dashboard --socket /run/user/1000/hmd.sock  a daemon with another observe.socket
  hmd dashboard --traces slow.hmdt fast.hmdt     with the curve of 'hmd estimate --sweep'

The data is at /state.json and /heat.json?process=PID:START. Ctrl-C ends it.
"""

OPTIONS = f"""\
--listen ADDRESS:PORT = {DEFAULT_LISTEN}
                       where to serve: 127.0.0.1, localhost or [::1] (default {DEFAULT_LISTEN})
--socket
--minutes N = 10       how far back the page looks, 1 to 1440 (default 10)
--traces SLOW FAST     two traces of a program, all-slow and all-fast: shows how much fast memory it
                       needs
"""

USAGE = "hmd dashboard [options]"


def run(args: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from hmd.dashboard.http_server import JSON, Content, PageServer, page_contents
    from hmd.dashboard.poller import Poller

    with suppress(UnreachableError):  # a daemon may start later; a permission does not come
        ask(args.socket, "health")
    sweep = _sweep(args.traces)
    watch = Poller(args.socket, args.minutes * 60)
    contents: Mapping[str, Content] = {
        **page_contents(),
        "/state.json": Content(JSON, lambda _: watch.state()),
        "/heat.json": Content(JSON, lambda query: watch.heat(query.get("process", ""))),
        "/sweep.json": Content(JSON, lambda _: sweep),
    }
    host, port = args.listen
    with PageServer(host, port, contents, _users()) as server:
        watch.start()
        print(f"the page is at {server.url} (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        finally:
            watch.stop()


def _users() -> set[int]:
    """Return the users who may read the page: this one, and the one who called sudo(8)."""
    sudo = os.environ.get("SUDO_UID", "")
    return {os.geteuid(), *([int(sudo)] if sudo.isascii() and sudo.isdecimal() else [])}


def _sweep(traces: list[Path] | None) -> bytes:
    """Return what ``hmd estimate --sweep --json`` prints, ``null`` without traces."""
    if traces is None:
        return b"null"
    from hmd.cli.estimate_command import answer_document

    slow, fast = map(str, traces)
    asked = build_parser(["estimate"]).parse_args(["estimate", "--sweep", "--", slow, fast])
    document = {**answer_document(asked), "slow": slow, "fast": fast}
    return json.dumps(document, default=plain, separators=(",", ":")).encode()


def _loopback(text: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT; loopback only, since the page has no authentication."""
    host, _, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    if host not in ("127.0.0.1", "::1") or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r}: take a loopback address and a port, as in {DEFAULT_LISTEN}; "
            "from elsewhere, ssh -L"
        )
    return host, int(port)


TYPES = {"listen": _loopback, "minutes": number(1, 1440)}
