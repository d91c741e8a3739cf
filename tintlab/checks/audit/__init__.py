"""Whether a scoring procedure depends on what it may not see."""
