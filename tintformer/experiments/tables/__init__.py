"""Results as tables; nothing here decides a number, so that records outlive changes of their presentation."""
