# SPDX-License-Identifier: MIT
"""Recording of tensor traces from PyTorch programs, for ``hmd tensors record`` and hmd.torch."""
