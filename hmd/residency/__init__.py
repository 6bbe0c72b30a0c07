# SPDX-License-Identifier: MIT
"""Where the pages of processes are: the sweep over their page tables, within a budget."""
