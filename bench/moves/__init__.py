# SPDX-License-Identifier: MIT
"""The mover compared with a bare loop of move_pages(2), in the emulated machine."""
