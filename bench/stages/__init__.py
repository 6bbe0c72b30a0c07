# SPDX-License-Identifier: MIT
"""Cost of each stage of a tick, and of the service."""
