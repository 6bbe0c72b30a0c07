"""The daemon's warnings at start and reload: what limits hmd on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from hmd.config.load import dotted
from hmd.daemon.stages import Stages
from hmd.daemon.start_checks import machine_warnings
from hmd.machine.checks.conflicts import competing_findings
from hmd.machine.checks.diagnostic import Severity
from hmd.machine.nodes.tiers import tier_warning


def start_warnings(stages: Stages, file: str) -> Iterator[str]:
    """Yield one line per limit; ``file`` is the configuration's name in messages."""
    sampler, config = stages.sampler, stages.config
    if not sampler.capabilities.ranks_heat:
        yield f"{stages.sampler_reason}; page faults are a coarse stand-in: hmd doctor"
    if config.decide.pageout is not None and not sampler.capabilities.sees_reads:
        why = f"with the sampler {sampler.name} pages in use look idle"
        yield f"decide.pageout has no effect: {why}"
    for found in machine_warnings(config, stages.topology):
        yield f"{dotted(found.path)}{found.text}"
    warning = tier_warning(stages.topology)
    if warning:
        yield warning
    findings = competing_findings(stages.proc, stages.sysfs)
    conflicts = [f"{f.name} ({f.action})" for f in findings if f.level is not Severity.OK]
    if conflicts:
        yield f"also active on this machine: {'; '.join(conflicts)}; see hmd doctor"
    if not config.targets:
        yield f"{file} names no targets: nothing to do until it does"
