"""The learning rule at the speed of the hardware: hand-written backward, no autograd graph, no copy of the model."""

from tintformer.engines.fast.fast_engine import FastEngine

__all__ = ["FastEngine"]
