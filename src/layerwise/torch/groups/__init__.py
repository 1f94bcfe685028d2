"""Parameter groups: their parameters and names, their rules and options, and the settings that follow from these."""
