"""Text in, result out: `learn`, and what it returns."""
