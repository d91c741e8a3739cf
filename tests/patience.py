# pyright: basic
"""How long a test waits for another process before it calls it hung."""

PATIENCE = 1800
"""Seconds. A busy machine takes minutes over a command of ten seconds: a time-out ends a hang and measures nothing."""
