"""Looking inside: hooks on every op of a pass, and what an update consists of and brings about."""
