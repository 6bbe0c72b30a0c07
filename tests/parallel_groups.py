"""A pytest plugin: what must not run at once where pytest-xdist runs two tests at a time.

Tests of the emulated machines run one after the other, as one boot serves many of them; so do those
that use this host's kernel, services and PMU. Other tests are divided by file.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

GROUPS = {"vm": "the emulated machines", "system": "the host", "contract": "the host"}


class GroupScheduling(LoadScopeScheduling):
    """Gives all tests of a group, or of a file outside the groups, to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        _tests, room, *_rest = path.split("/")
        return GROUPS.get(room, path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """The scheduler of ``pytest -n``, whatever ``--dist`` names."""
    return GroupScheduling(config, log)
