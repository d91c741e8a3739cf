"""Trust in what was built: every op against the reference, every pass against the oracle, every theorem measured."""
