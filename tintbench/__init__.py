"""Speed against explicit fine-tuning, measured in one process: what `tint bench` runs."""
