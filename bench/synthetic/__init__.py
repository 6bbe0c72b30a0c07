# SPDX-License-Identifier: MIT
"""Simulated processes and memory for benchmarks and tests of the tick."""
