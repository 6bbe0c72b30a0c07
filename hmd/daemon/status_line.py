"""The daemon in one line, for ``systemctl status`` and the log."""

from __future__ import annotations

from hmd.daemon.stages import Stages
from hmd.machine.procfs import format_ids
from hmd.observe.snapshot import Snapshot


def status_line(stages: Stages, now: Snapshot) -> str:
    """Return what the daemon follows, and what it has moved."""
    admin = stages.admin
    dry = ", dry run" if now.dry_run else ""
    dry += ", paused" if admin.paused else ""
    if admin.drained:
        dry += f", node {format_ids(sorted(admin.drained))} drained"
    return (
        f"{len(stages.processes)} processes of {len(stages.config.targets)} targets, "
        f"sampler {stages.sampler.name}, {now.promoted_bytes >> 20} MiB promoted, "
        f"{now.demoted_bytes >> 20} MiB demoted{dry}"
    )
