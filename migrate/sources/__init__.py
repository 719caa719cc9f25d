"""Old checkpoints."""
