"""Where a program's pages start, and who moves them: the four ways each program is run."""

from __future__ import annotations

from enum import StrEnum

FAST_NODE = 0
SLOW_NODE = 1
PROGRAM_CPU = 1
SERVICE_CPU = 0


class Way(StrEnum):
    """How a program is run."""

    ALL_FAST = "all_fast"
    ALL_SLOW = "all_slow"
    FIRST_TOUCH = "first_touch"
    HMD = "hmd"

    @property
    def fast_node_is_scarce(self) -> bool:
        """True where the fast node is cut down to the hot set and a tenth."""
        return self in (Way.FIRST_TOUCH, Way.HMD)


def bound_to(way: Way, cpu: int) -> list[str]:
    """Return the words to put before a command so that it starts in this way on a CPU.

    First touch and hmd start without a memory policy: pages go where the kernel puts them.
    """
    words = ["numactl", f"--physcpubind={cpu}"]
    if way is Way.ALL_FAST:
        words.append(f"--membind={FAST_NODE}")
    elif way is Way.ALL_SLOW:
        words.append(f"--membind={SLOW_NODE}")
    return [*words, "--"]


def service(command: list[str]) -> list[str]:
    """Return a command run beside the program: on the other CPU, out of the fast node."""
    return [
        "numactl",
        f"--physcpubind={SERVICE_CPU}",
        f"--membind={SLOW_NODE}",
        "--",
        *command,
    ]
