# SPDX-License-Identifier: MIT
"""A pytest plugin: with ``-n 2 --dist loadfile``, files that build packages go to one worker.

They build in the checkout, where a second build would be in the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

GROUPS = {
    "tests/system/debian/": "packages",
    "tests/system/packaging/": "packages",
}
"""Groups by how the paths of their files begin."""


def group_of(file: str) -> str:
    """Return the group of a file's tests, by its path from the checkout: by default the file."""
    return next((group for begin, group in GROUPS.items() if file.startswith(begin)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Return the scheduler of ``--dist loadfile``, with these groups."""
    from xdist.scheduler import LoadFileScheduling

    class FileGroupScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        def _split_scope(self, nodeid: str) -> str:
            return group_of(super()._split_scope(nodeid))

    return FileGroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
