"""What the daemon's servers share: fair places for connections, who connects, bounded HTTP."""
