"""What a simulator and a compiled network consist of, and what passes through their layers."""
