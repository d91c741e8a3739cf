"""The independent truth: the Hugging Face model itself under autograd, sharing no numerical code with the rest."""

from tintformer.engines.oracle.oracle_engine import OracleEngine

__all__ = ["OracleEngine"]
