# SPDX-License-Identifier: MIT
"""What to move: plans, and the policies that make them, one a file."""
