# SPDX-License-Identifier: MIT
"""Tests of the host's kernel and of installed tools run as root, and are skipped otherwise."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("root")
