# SPDX-License-Identifier: MIT
"""Each configuration of config/gallery is valid, fits its schema, and runs a tick here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.config import Config, load
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier

GALLERY = sorted((Path(__file__).parents[3] / "config/gallery").glob("*.yaml"))


def local(path: Path, folder: Path) -> Config:
    """Return a configuration with a sampler, a socket and a port that this machine has."""
    config = load(path)
    sample = config.sample.model_copy(update={"sampler": "faults"})
    observe = config.observe.model_copy(update={"metrics": "off", "socket": folder / "hmd.sock"})
    return config.model_copy(update={"sample": sample, "observe": observe})


def test_gallery_has_ten_configurations_with_a_heading() -> None:
    assert len(GALLERY) == 10
    assert all(path.read_text().startswith("# ") for path in GALLERY)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_configuration_of_gallery_runs(path: Path, tmp_path: Path) -> None:
    service = Service(lambda: local(path, tmp_path), path.name, Notifier({}))
    try:
        record = service.tick(1.0)
        status = service.observer.latest
    finally:
        service.close()
    assert not record.failed
    assert [target.name for target in status.targets] == [t.name for t in load(path).targets]
    assert status.tier_rates == ((512 << 20,) if "optane" in path.name else ())
    assert status.dry_run == ("dry-week" in path.name)
    dry = {target.name for target in status.targets if target.dry_run}
    assert dry == {
        "02-dry-week": {"redis", "java"},
        "03-one-target-live": {"java"},
    }.get(path.stem, set())
