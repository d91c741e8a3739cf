"""What is compared: learning rules, adapters and fine-tuning as it is usually done."""
