# SPDX-License-Identifier: MIT
"""What a program's former runs tell: profiles, how they are learned, what they expect of a run."""
