"""The plan builder of tests/unit/migrate, for tests of the mover on this host's kernel."""

from tests.unit.migrate.conftest import bench

__all__ = ["bench"]
