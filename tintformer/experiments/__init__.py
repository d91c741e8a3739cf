"""Experiments: data by description, prompts, and records of every unit of work."""
