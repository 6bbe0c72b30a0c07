# SPDX-License-Identifier: MIT
"""Training steps in plain PyTorch, and the traces that ``hmd tensors record`` made of them."""
