# SPDX-License-Identifier: MIT
"""The security model's claims: each test that the page names exists."""

from __future__ import annotations

import re
from pathlib import Path

from hmd.control.status_socket import MAX_CLIENTS, MAX_OWN_CLIENTS
from hmd.serve.bounded_http import HEAD_S, MAX_CONNECTIONS, MAX_OWN_CONNECTIONS, SEND_S

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/explanation/security.md"


def test_security_page_names_existing_tests() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 30
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)
    }
    assert named - defined == set()


def test_security_page_states_limits_of_servers() -> None:
    text = PAGE.read_text()
    assert f"| status socket | {MAX_CLIENTS} | {MAX_OWN_CLIENTS} |" in text
    assert f"| metrics, page | {MAX_CONNECTIONS} | {MAX_OWN_CONNECTIONS} |" in text
    assert f"{HEAD_S:g} s for a head of 16 KiB, {SEND_S:g} s for the response" in text
