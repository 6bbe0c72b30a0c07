"""The digest of a case: all that its result depends on, except the speed of the host.

Comments of C and Python sources of the daemon count; those of programs do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hmd
from bench.compare import guest_daemon, guest_damon
from bench.compare.compared_program import compared_digest
from bench.compare.comparison_case import ComparisonCase
from bench.compare.systems import BootService, system_named
from bench.compare.testbed import (
    CACHES,
    FAST_NODE_BYTES,
    FLUSH_US,
    MEASURE,
    PRESET,
    SERVICE_CACHE_BYTES,
)
from hmd.emulate.preset import load

_DAEMON_ROOMS = (
    *("machine", "sample", "residency", "heat", "decide", "migrate"),
    *("pipeline", "daemon", "native"),
)
_SETTING = (MEASURE, FAST_NODE_BYTES, FLUSH_US, CACHES, SERVICE_CACHE_BYTES)


def case_digest(
    case: ComparisonCase,
    dilation: float,
    settings: Mapping[str, Any] = guest_daemon.NO_SETTINGS,
) -> str:
    """Return the digest of a case; raises ConfigError for an unknown program or system.

    ``settings`` are those of hmd's policy that differ from its defaults.
    """
    system = system_named(case.system)
    parts = [compared_digest(case.program), load(PRESET).model_dump_json(), case.ratio]
    parts += [repr(system), repr((dilation, *_SETTING))]
    if system.service is BootService.DAMON:
        parts.append(repr((guest_damon.scheme_words(), guest_damon.SETTLE_S)))
    if system.service is BootService.HMD:
        configured = guest_daemon.configuration(system.policy, settings=settings)
        parts += [repr(configured), _daemon_digest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _daemon_digest() -> str:
    root = Path(hmd.__file__).parent
    digest = hashlib.sha256()
    for room in _DAEMON_ROOMS:
        for path in sorted([*(root / room).rglob("*.py"), *(root / room).glob("*.[ch]")]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
