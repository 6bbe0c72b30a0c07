# SPDX-License-Identifier: MIT
"""The service under hostile neighbours: clients that flood it, programs that make it grow."""
