"""How a pass runs: the batch, the walk, contracts of executors and engines, hooks."""
