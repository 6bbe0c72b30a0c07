# SPDX-License-Identifier: MIT
"""hmd, the heterogeneous memory daemon.

One tick is one sentence: sample memory accesses, keep page heat, decide, migrate, observe.
"""

__version__ = "0.1.0"
