"""The kinds of experiment: what a unit is, how it is done, and what its results say."""
