# SPDX-License-Identifier: MIT
"""The parts of the learned policy: features, network, and memories of what returns."""
