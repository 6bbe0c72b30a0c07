# SPDX-License-Identifier: MIT
"""Names in Host headers: those of this machine, and those that a foreign page may have."""

from __future__ import annotations

import pytest

from hmd.serve.bounded_http import names_this_machine


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9742", "127.0.0.1:9742", "[::1]:9742", "10.1.2.3", "[fe80::1]:80",
     "node7:9742", "Node7.cluster.local"],
)  # fmt: skip
def test_host_of_this_machine_accepted(host: str) -> None:
    assert names_this_machine(host, ("node7", "node7.cluster.local"))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9742", "localhost.evil.example", "127.0.0.1.nip.io", "",
     "node70", "localhost:", "[::1", "127.0.0.1@evil.example"],
)  # fmt: skip
def test_host_of_a_foreign_page_refused(host: str) -> None:
    assert not names_this_machine(host, ("node7",))
