# SPDX-License-Identifier: MIT
"""Policies, one per file. Each file's ``ABOUT`` describes its policy; the registry lists them."""
