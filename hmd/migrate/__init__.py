"""Moving pages: the move_pages engine and its budgets."""
