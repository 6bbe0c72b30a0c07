# SPDX-License-Identifier: MIT
"""The machine: memory nodes and tiers, processes and their mappings, privileges, system calls."""
