# SPDX-License-Identifier: MIT
"""The configuration: YAML to frozen settings, every mistake with file and line.

Takes a file (and its drop-ins); gives ``Config``. Costs milliseconds, at start and on reload.
"""

from hmd.config.load import load, loads
from hmd.config.schema import DEFAULT_METRICS, Config

__all__ = ["DEFAULT_METRICS", "Config", "load", "loads"]
