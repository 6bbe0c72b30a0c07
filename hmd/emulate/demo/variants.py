"""The four variants of a run: initial placement of pages, with or without hmd."""

from __future__ import annotations

from enum import StrEnum

FAST_NODE = 0
SLOW_NODE = 1
PROGRAM_CPU = 1
SERVICE_CPU = 0


class Variant(StrEnum):
    """A variant of a run."""

    ALL_FAST = "all_fast"
    ALL_SLOW = "all_slow"
    FIRST_TOUCH = "first_touch"
    HMD = "hmd"

    @property
    def fast_node_is_scarce(self) -> bool:
        """Whether the fast node is reduced to 1.1 hot sets."""
        return self in (Variant.FIRST_TOUCH, Variant.HMD)


def bound_to(variant: Variant, cpu: int) -> list[str]:
    """Return the command prefix that starts a program in this variant on a CPU.

    First touch and hmd have no memory policy: the kernel's first touch places pages.
    """
    words = ["numactl", f"--physcpubind={cpu}"]
    if variant is Variant.ALL_FAST:
        words.append(f"--membind={FAST_NODE}")
    elif variant is Variant.ALL_SLOW:
        words.append(f"--membind={SLOW_NODE}")
    return [*words, "--"]


def service(command: list[str]) -> list[str]:
    """Return a command that runs on the service CPU and allocates on the slow node."""
    return [
        "numactl",
        f"--physcpubind={SERVICE_CPU}",
        f"--membind={SLOW_NODE}",
        "--",
        *command,
    ]
