"""What is read and written: models, configurations, caches, what is refused in files, whole-file writes."""
