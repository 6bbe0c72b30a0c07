# SPDX-License-Identifier: MIT
"""Observation: counters over ticks, the snapshot that readers share, Prometheus metrics."""
