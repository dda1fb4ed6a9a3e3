"""Other methods for comparison, each implemented from its published description."""
