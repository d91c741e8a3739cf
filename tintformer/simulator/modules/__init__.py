"""Modules of the simulator, one file an op: forward, backward and descent side by side, made of primitives."""
