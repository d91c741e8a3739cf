"""What is read and written: models, caches, what is refused in files, whole-file writes."""
