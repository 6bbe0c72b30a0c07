# SPDX-License-Identifier: MIT
"""Training of the learned policy on recorded programs; the daemon never imports it."""
