"""What is optional and stands on the rest, which imports nothing of it before it is asked for."""
