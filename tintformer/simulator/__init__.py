"""The construction: modules of a transformer, with the auxiliary in prefix tokens."""
