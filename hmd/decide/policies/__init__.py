"""Policies, one per file. Each file's ``ABOUT`` describes its policy; the registry lists them."""
