"""Long-term memory: notes that are recalled by meaning, beside Hermes's MEMORY.md and USER.md."""
