"""The drawings of the construction in the documentation, made from built objects; `make figures` writes them."""
