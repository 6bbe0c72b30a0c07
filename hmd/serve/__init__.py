# SPDX-License-Identifier: MIT
"""What the daemon's servers share: a bounded server, and HTTP on it."""
