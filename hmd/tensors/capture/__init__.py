"""Recording of tensor traces from PyTorch programs; only ``hmd tensors record`` imports it.

:mod:`hmd.tensors.capture.operation_log` and :mod:`hmd.tensors.capture.steady_step` need no PyTorch.
"""
