"""How large a simulator and a compiled network are, counted and by the paper's formula."""
