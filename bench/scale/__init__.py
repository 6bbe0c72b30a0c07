# SPDX-License-Identifier: MIT
"""Cost and quality of ticks at up to terabytes of memory."""
