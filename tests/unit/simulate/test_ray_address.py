# SPDX-License-Identifier: MIT
"""Addresses of Ray clusters that no cluster answers at, and a machine without Ray."""

from __future__ import annotations

import sys

import pytest

from hmd.base.errors import MissingError, UnreachableError, UsageError
from hmd.simulate.executors import RayCluster, check_cluster
from tests.fakes.free_port import free_port


@pytest.mark.parametrize("address", ["", "host", "host:", ":6379", "host:port", "host:70000"])
def test_cluster_address_without_host_or_port_raises_usageerror(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        check_cluster(address, 1)


def test_cluster_closed_port_is_one_line_that_says_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError) as error:
        check_cluster(address, 1)
    assert str(error.value) == (
        f"Ray cluster {address} does not answer (Connection refused): start one with ray start"
        f" --head, have this machine join it with ray start --address {address}, or leave --ray out"
    )


def test_cluster_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingError, match=r"--ray needs Ray: .*hmd-tiering\[fleet\]"):
        RayCluster("127.0.0.1:6379")
