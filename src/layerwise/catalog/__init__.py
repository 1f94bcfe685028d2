"""All optimizers, by name: their list, their presets, what classes say of them, and what some leave to others."""
