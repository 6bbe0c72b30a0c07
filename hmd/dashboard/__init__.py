# SPDX-License-Identifier: MIT
"""A page that shows, live, what the daemon does: a client of its status socket."""
