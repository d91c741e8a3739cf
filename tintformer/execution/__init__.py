"""How a pass runs: batch and masks, the walk over the auxiliary, contracts of executors and engines, hooks."""
