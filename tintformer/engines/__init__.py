"""Three executables of one meaning: reference, fast, and the oracle under autograd."""
