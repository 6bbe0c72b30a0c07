# SPDX-License-Identifier: MIT
"""The learned policy on programs that its training never saw."""
