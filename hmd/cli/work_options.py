"""Options of commands that run simulations: where these run."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hmd.errors import UsageError

if TYPE_CHECKING:
    from hmd.simulate.executors import Executor


def add_ray(group: argparse._ActionsContainer) -> None:
    """Register ``--ray``."""
    group.add_argument(
        "--ray",
        metavar="HOST:PORT",
        help="run the simulations on this Ray cluster, which this machine is part of, with the same"
        " results (extra fleet)",
    )


@contextmanager
def open_executor(address: str | None, workers: int) -> Generator[Executor]:
    """Give the cluster of this address or, without one, ``workers`` of this process.

    UsageError where both are given.
    """
    from hmd.simulate.executors import LocalExecutor

    if address is None:
        yield LocalExecutor(workers)
        return
    if workers != 1:
        raise UsageError("--workers is for this machine alone: leave it out, or --ray")
    from hmd.simulate.ray_cluster import RayCluster

    with RayCluster(address) as cluster:
        yield cluster
