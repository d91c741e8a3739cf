"""How an experiment is done: units, records, processes, choosing rates."""
