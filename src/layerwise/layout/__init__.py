"""How a tensor is cut: into its layers (`blocks.py`), and into the pieces that a rule steps (`pieces.py`)."""
