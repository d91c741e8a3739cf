"""Is it right, how large is it, does it leak: verification, theorems, sizes, plans, audits."""
