# SPDX-License-Identifier: MIT
"""The page explains every reason for which a planned page did not move."""

from __future__ import annotations

import re
from pathlib import Path

from hmd import dashboard
from hmd.migrate.status import MoveStatus


def test_page_has_a_meaning_for_each_status_of_unmoved_pages() -> None:
    text = (Path(dashboard.__file__).parent / "page/moves.js").read_text()
    table = text.split("const LEFT = {")[1].split("};")[0]
    named = set(re.findall(r"^  (\w+): \[", table, re.MULTILINE))
    assert named == {status.label for status in MoveStatus} - {MoveStatus.MOVED.label}
