# SPDX-License-Identifier: MIT
"""Recording of tensor traces from PyTorch programs; only ``hmd tensors record`` imports it.

:mod:`hmd.tensors.capture.recorder` and :mod:`hmd.tensors.capture.script` need no PyTorch.
"""
