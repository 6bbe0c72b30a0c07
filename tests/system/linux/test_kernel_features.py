# SPDX-License-Identifier: MIT
"""Features of this host, each tried out."""

from typing import Any

from hmd.base.errors import Severity
from hmd.linux.checks import feature_findings


def by_name(findings: Any) -> Any:
    assert len({f.name for f in findings}) == len(findings)
    return {f.name: f for f in findings}


def test_kernel_features_on_this_host_are_all_tried() -> None:
    found = by_name(feature_findings())
    assert found["move_pages"].level == Severity.OK
    assert set(found) == {
        "move_pages", "page size", "kernel memory tiers", "pidfd", "huge page knowledge", "DAMON",
        "hugetlbfs pages",
    }  # fmt: skip
    assert found["page size"].level == Severity.OK
