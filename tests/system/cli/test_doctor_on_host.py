# SPDX-License-Identifier: MIT
"""``hmd doctor`` on this host."""

import pytest

from hmd.cli.main import main
from tests.unit.cli.doctor_findings import findings


def test_doctor_on_this_host_reports_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = findings(capsys)
    assert code == (4 if any(f["level"] == "fail" for f in found.values()) else 0)
    assert found["move_pages"]["level"] == "ok"
    assert found["sampler"]["level"] in ("ok", "warn")
    assert found["move pages"]["level"] == "ok"
