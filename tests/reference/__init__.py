"""The optimizers element by element in float64, and what else tests know of each."""
