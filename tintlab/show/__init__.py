"""Results as intervals, tables and figures."""
