"""Pictures that commands write."""
