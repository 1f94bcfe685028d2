"""Parameters on an accelerator that are stepped in the host's memory: their weights there, and their gradients."""
