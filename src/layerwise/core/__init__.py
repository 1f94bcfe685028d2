"""The layer between an API and the engines, shared by all APIs that step in place.

For each tensor: its plan (layout, settings, local part), its slot (the arrays of its state), their storage, and the
jobs for the engines. An API provides its arrays (`Library`), names, groups, and errors in its own words.
"""
