"""What to move: plans, and the policies that make them, one a file."""
