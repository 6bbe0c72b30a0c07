# SPDX-License-Identifier: MIT
"""hmd, the heterogeneous memory daemon.

One tick is one sentence: sample memory accesses, keep page heat, decide, migrate, observe.
"""

from pathlib import Path

__version__ = "0.1.0"


def revision() -> str:
    """Return the commit that a package was built from, "" in a checkout."""
    file = Path(__file__).with_name("REVISION")
    return file.read_text().strip() if file.exists() else ""
