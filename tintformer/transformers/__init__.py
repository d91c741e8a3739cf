"""At home in transformers: a configuration and a model that learns inside its forward pass, for the auto classes."""
