"""Tools beside an optimizer: groups, schedulers, monitors, and steps in the backward pass."""
