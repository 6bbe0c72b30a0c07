# SPDX-License-Identifier: MIT
"""The daemon: stages built from a configuration, a tick that runs them, a service around it."""
