# SPDX-License-Identifier: MIT
"""What a program's former runs tell about its next one: variants of programs, and bounds."""
