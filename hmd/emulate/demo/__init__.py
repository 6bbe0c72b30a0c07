# SPDX-License-Identifier: MIT
"""The demonstration: two programs on an emulated DRAM+PM machine, with and without hmd."""
