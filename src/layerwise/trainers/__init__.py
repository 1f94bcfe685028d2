"""The names by which configurations of trainers find what `layerwise.contrib.trainers` has for them."""
