# SPDX-License-Identifier: MIT
"""Recorded traces: what a program accessed, where its pages lay, and how long it took."""
