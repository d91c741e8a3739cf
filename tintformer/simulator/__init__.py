"""The constructed transformer: its forward pass trains the auxiliary, whose weights sit in prefix tokens."""
