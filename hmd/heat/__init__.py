# SPDX-License-Identifier: MIT
"""How hot each page is: flat arrays of cooled access counts, and where each page lies."""
