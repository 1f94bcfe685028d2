"""Parameters on an accelerator that are stepped in host memory: their weights there, and their gradients."""
