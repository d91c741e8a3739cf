"""What is evaluated: models, texts, tasks, prompts, and how answers are scored."""
