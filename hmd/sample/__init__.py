# SPDX-License-Identifier: MIT
"""Where accesses come from: samplers that fill columns of sampled memory accesses."""
