"""What a run will need, before it starts: the engine's own pass over a model without data, every byte counted."""
