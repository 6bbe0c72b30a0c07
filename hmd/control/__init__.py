# SPDX-License-Identifier: MIT
"""Control of the daemon: status socket, client, admin requests and the state that they set."""
