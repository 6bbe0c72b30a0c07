# SPDX-License-Identifier: MIT
"""Recorded misses of programs, and their replay through the timing model."""
