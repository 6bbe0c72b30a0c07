# SPDX-License-Identifier: MIT
"""The compared systems, each of which decides the placement of a program's pages.

A system is an initial placement, kernel settings while it is active, and optionally a service on
the other CPU. All but two have the fast node reduced to the ratio. ``kernel-tiering`` has its
settings scaled to this machine's clock; ``damon`` follows damo's tiering script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bench.compare.comparison_case import RATIOS, SWEPT, THP, WHOLE, ComparisonCase
from bench.compare.testbed import FIRST_TOUCH, ON_FAST, ON_SLOW, Start
from hmd.base.errors import ConfigError
from hmd.emulate.demo.measure import FAST_NODE, MIN_FREE_KBYTES, SLOW_NODE
from hmd.policy import registry

RUNS = 3
"""Runs of each case, each in another boot."""

_BALANCING = "/sys/kernel/debug/sched/numa_balancing"
# Memory tiering mode instead of locality mode, and demotion to the slow node instead of reclaim
# (Documentation/admin-guide/sysctl/kernel.rst and ABI/testing/sysfs-kernel-mm-numa). All other
# settings are the kernel's defaults.
_TIERING: Mapping[str, str | int] = {
    "/sys/kernel/mm/numa/demotion_enabled": 1,
    "/proc/sys/kernel/numa_balancing": 2,
}
# A run takes 20 to 100 s by the guest's clock, where a real program runs for minutes. These are the
# best of the settings in docs/lab/2026-11-comparison-settings.md.
BALANCING_SCALED: Mapping[str, str | int] = {
    f"{_BALANCING}/scan_delay_ms": 100,
    f"{_BALANCING}/scan_period_min_ms": 100,
    f"{_BALANCING}/scan_period_max_ms": 1000,
    f"{_BALANCING}/hot_threshold_ms": 500,
}
# Pages per turn in the ratio of the nodes' read bandwidths, 105 and 39.4 GB/s, which the kernel
# takes from the HMAT since Linux 6.16.
_BOTH = (FAST_NODE, SLOW_NODE)
_WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"
_WEIGHTED: Mapping[str, str | int] = {f"{_WEIGHTS}/node0": 8, f"{_WEIGHTS}/node1": 3}

# In this order: khugepaged raises the reserves when it starts.
_HUGE_PAGES: Mapping[str, str | int] = {
    "/sys/kernel/mm/transparent_hugepage/enabled": "always",
    "/proc/sys/vm/min_free_kbytes": MIN_FREE_KBYTES,
}

_UNLISTED = ("interleave", "none", "tensors")
"""Policies without a part in the comparison: they do not follow heat, or need hints."""


class BootService(StrEnum):
    """The service on the other CPU; each kind has boots of its own."""

    NOTHING = "nothing"
    DAMON = "damon"
    HMD = "hmd"


@dataclass(frozen=True, slots=True)
class System:
    """A system by name; ``knobs`` are files of the guest and their contents."""

    name: str
    start: Start = FIRST_TOUCH
    scarce: bool = True
    knobs: Mapping[str, str | int] = field(default_factory=dict)
    service: BootService = BootService.NOTHING
    policy: str = ""
    swept: bool = False
    """Whether the fast node is free when a program starts, instead of full of page cache."""
    huge: bool = False
    """Whether transparent huge pages are on, instead of pages of 4 KiB only."""

    @property
    def ratios(self) -> tuple[str, ...]:
        """The ratios at which the system is compared."""
        if not self.scarce:
            return (WHOLE,)
        if self.reference:
            return RATIOS[:1]
        secondary = self.policy not in ("", registry.DEFAULT)
        return RATIOS[:1] if secondary else RATIOS

    @property
    def reference(self) -> bool:
        """Whether it is another system on a machine that is set up in another way."""
        return self.swept or self.huge

    @property
    def runs(self) -> int:
        """Runs of each case: several, because they scatter, by the frames of a boot alone.

        References with a free fast node run once.
        """
        return 1 if self.swept else RUNS


ALL_FAST = System("all-fast", ON_FAST, scarce=False)
ALL_SLOW = System("all-slow", ON_SLOW, scarce=False)
FIRST = System("first-touch")
KERNEL = System("kernel-tiering", knobs={**BALANCING_SCALED, **_TIERING})
KERNEL_DEFAULTS = System("kernel-tiering-defaults", knobs=_TIERING)
DAMON = System("damon", service=BootService.DAMON)
_STANDING = (
    ALL_FAST,
    ALL_SLOW,
    FIRST,
    System("interleave", Start("interleave", _BOTH)),
    System("weighted-interleave", Start("weighted", _BOTH), knobs=_WEIGHTED),
    KERNEL,
    KERNEL_DEFAULTS,
    DAMON,
)
PEERS = (FIRST.name, KERNEL.name, KERNEL_DEFAULTS.name, DAMON.name)
"""The alternatives to hmd for a user."""


def hmd_with(policy: str) -> System:
    """Return hmd with one of its policies."""
    return System(f"hmd:{policy}", service=BootService.HMD, policy=policy)


HMD_DEFAULT = hmd_with(registry.DEFAULT).name
REFERENCES = (FIRST, KERNEL, DAMON, hmd_with(registry.DEFAULT))
"""The alternatives to hmd at their best settings, and hmd with its default policy."""


def swept(system: System) -> System:
    """Return the system with a fast node that is free before each program, at one ratio."""
    return replace(system, name=f"{system.name}{SWEPT}", swept=True)


def huge_paged(system: System) -> System:
    """Return the system with transparent huge pages, which are off otherwise, at one ratio."""
    knobs = {**system.knobs, **_HUGE_PAGES}
    return replace(system, name=f"{system.name}{THP}", knobs=knobs, huge=True)


def systems() -> tuple[System, ...]:
    """Return all systems, including hmd with each policy that uses heat.

    Those that end with ``@swept`` follow, of the peers and the default policy.
    """
    policies = (name for name in registry.names() if name not in _UNLISTED)
    standing = (*_STANDING, *(hmd_with(name) for name in policies))
    return (*standing, *map(swept, REFERENCES))


def system_named(name: str) -> System:
    """Return a system, also hmd with any policy, and any with ``@thp`` at the end of its name.

    Raises ConfigError, which lists the names.
    """
    if name.endswith(THP):
        return huge_paged(system_named(name.removesuffix(THP)))
    unlisted = [hmd_with(policy) for policy in _UNLISTED]
    every = (*systems(), *unlisted, *map(swept, unlisted))
    for system in every:
        if system.name == name:
            return system
    raise ConfigError(f"no system {name!r}: take {', '.join(system.name for system in every)}")


def cases_of(program: str) -> list[ComparisonCase]:
    """Return all cases of a program."""
    return [
        ComparisonCase(program, ratio, each.name) for each in systems() for ratio in each.ratios
    ]
