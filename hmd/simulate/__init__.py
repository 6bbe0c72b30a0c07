# SPDX-License-Identifier: MIT
"""Policies in modelled time: the daemon's tick over recorded misses, and the search of settings."""
