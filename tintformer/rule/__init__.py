"""How the auxiliary learns: the rule's knobs and the mathematics of every op, forward, backward and descent."""
