"""Checkpoints of other packages' optimizers: a codec for each, which reads them and writes them."""
