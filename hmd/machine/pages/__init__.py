"""The pages of a process: mappings, residency, huge pages, and the calls that move them."""
