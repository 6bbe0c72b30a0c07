# SPDX-License-Identifier: MIT
"""Real programs of different memory behaviour, and the tests of hmd's models against them."""
