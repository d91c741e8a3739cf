"""The recipe of the bundled models: text files in, a small pretrained model with its card out."""
