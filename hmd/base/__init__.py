# SPDX-License-Identifier: MIT
"""What every room shares: errors, units, YAML, files that appear whole, compiled functions."""
