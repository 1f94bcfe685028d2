"""The division of a tensor into its layers (`blocks.py`), and into the pieces that a rule steps (`pieces.py`)."""
