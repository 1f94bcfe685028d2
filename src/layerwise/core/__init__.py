"""What lies between an API and the engines, the same for all APIs that step in place.

For each tensor: its plan (layout, settings, what of it is here), its slot (the arrays that are kept of it), their
storage, and the jobs that engines get. An API has the arrays (`Library`), names, groups, and errors in its own words.
"""
