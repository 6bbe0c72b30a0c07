# SPDX-License-Identifier: MIT
"""The emulated machine: a real kernel on nodes of different speed, in QEMU."""
