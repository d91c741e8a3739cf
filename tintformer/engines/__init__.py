"""Executables of the one meaning."""
