# SPDX-License-Identifier: MIT
"""hmd compared with other tiering systems in the emulated machine: programs, ratios, systems."""
