# SPDX-License-Identifier: MIT
"""The findings that ``hmd doctor --json`` has printed."""

from __future__ import annotations

import json

import pytest


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """Return the findings by name; their names differ, and "works" says whether none failed."""
    document = json.loads(capsys.readouterr().out)
    found = {f["name"]: f for f in document["findings"]}
    assert len(found) == len(document["findings"])
    assert document["works"] == all(f["level"] != "fail" for f in found.values())
    return found
