# SPDX-License-Identifier: MIT
"""The guest: kernel, first process, QEMU, and the commands that run in it."""
