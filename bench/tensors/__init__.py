# SPDX-License-Identifier: MIT
"""Planners of training steps, compared."""
