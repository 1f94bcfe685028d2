"""A step of the PyTorch API, from parameter groups to the jobs of engines.

Begin with `_stepper.py`, the steps of one optimizer. It makes a `_work.py:Work`, lets `_planner.py` check
(`_checks.py`) and plan it (`_plan.py`, with state), and takes the `_prepared.py:TensorStep` with one of
`_engines.py`. Steps of some parameters alone are in `_partial.py`, steps that are measured before they are taken in
`_measured_step.py`, and warnings after the first in `_first_steps.py`.
"""
