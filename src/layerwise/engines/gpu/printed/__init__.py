"""Programs of the rules, printed as device functions by `make generate`."""
