"""What people call: Tint, Tuned, the choice of a rate, texts."""
