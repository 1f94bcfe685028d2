"""The mathematics: one module per optimizer, over any array namespace.

A rule module has four names: a class of options derived from `Hyper`; `State`, a named tuple of what the optimizer
remembers; `shapes(h, shape)`, the shape of each; and `step(xp, p, g, state, h, now)`, a generator that computes
elementwise, *yields* requests for the sums it needs over the whole tensor, receives the answers, and goes on
(`requests.py` has the requests). In all formulas g is the gradient that `clipping.py` has prepared. A rule never
branches on a value and does not know its driver, so the same text runs eager, jitted, differentiated, and sharded.
`catalog` finds the modules by themselves.
"""
