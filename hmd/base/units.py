# SPDX-License-Identifier: MIT
"""Sizes that every room shares: pages, cache lines and multiples of bytes. Imports nothing.

hmd runs on base pages of 4 KiB; ``hmd doctor`` reports any other size as unsupported.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PAGE_BYTES: Final = 4096
"""A base page of x86-64, and of arm64 kernels with CONFIG_ARM64_4K_PAGES."""

HUGE_PAGE_BYTES: Final = 2 * MIB
"""A huge page: what one PMD entry maps (Documentation/admin-guide/mm/transhuge.rst)."""

HUGE_PAGE_PAGES: Final = HUGE_PAGE_BYTES // PAGE_BYTES
"""Base pages in a huge page."""

LINE_BYTES: Final = 64
"""A cache line of every supported CPU."""
