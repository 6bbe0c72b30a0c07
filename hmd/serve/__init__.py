"""What the daemon's servers share: limits on connections, who connects, bounded HTTP."""
