# SPDX-License-Identifier: MIT
"""The fixtures of tests/unit/dashboard, for tests of the page in a browser."""

from tests.unit.dashboard.conftest import machine, serve, socket, sweep, traces, watched

__all__ = ["machine", "serve", "socket", "sweep", "traces", "watched"]
