"""Experiments: data by description, units of work and their records, tables and figures."""
