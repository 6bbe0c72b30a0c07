# SPDX-License-Identifier: MIT
"""Planners of a training step's memory, one per file."""
