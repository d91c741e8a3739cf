"""The standing attack: random cases against every engine, and mutated files against everything that reads files."""
