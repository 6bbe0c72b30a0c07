"""What policies see of the heat table: rows, their columns, and the selection of rows."""
