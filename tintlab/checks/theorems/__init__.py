"""The paper's theorems with their constants worked out, each next to what is measured on real tensors.

The paper states orders, O(...), without constants. Every function here says in its docstring which inequality it
checks and why it holds; `check.Check.printed` is the paper's own expression, with the constants of its proof where the
proof has any and 1 where it has none.
"""
