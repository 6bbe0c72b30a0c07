"""What the machine can and cannot do, and what is in the way."""
