"""Models and data sets for offline use: where they lie, how they come there, and what is checked of them."""
