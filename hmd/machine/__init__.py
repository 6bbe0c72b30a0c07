"""What the machine is: nodes and tiers, processes and their mappings, privileges, native calls."""
