"""Control of the daemon: the status socket, requests, and what administrators asked for."""
