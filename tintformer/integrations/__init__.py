"""Other tools' own interfaces: transformers and the evaluation harness."""
