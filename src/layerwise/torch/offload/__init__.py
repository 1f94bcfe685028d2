"""Parameters on an accelerator that are stepped in host memory, by parts.

`_stepper.py` takes the steps. `_host.py` has the weights in host memory, and the sums of gradients; `_ring.py` is the
memory of bounded size through which gradients come, and `_copies.py` the copies between host and device.
"""
