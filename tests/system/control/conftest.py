# SPDX-License-Identifier: MIT
"""Fixtures of admin requests."""

from tests.fakes.admin import commands, daemon, loop, path, state

__all__ = ["commands", "daemon", "loop", "path", "state"]
