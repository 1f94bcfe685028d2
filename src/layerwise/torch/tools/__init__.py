"""Tools for an optimizer: groups, monitors, steps in the backward pass, and whole states and weights."""
