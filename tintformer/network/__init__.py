"""The compiled simulator: one stream, one sequence, one list of layers."""
