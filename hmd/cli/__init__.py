# SPDX-License-Identifier: MIT
"""The command line, one file a command family."""
