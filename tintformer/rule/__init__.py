"""How the auxiliary learns: the rule and the mathematics of every op."""
