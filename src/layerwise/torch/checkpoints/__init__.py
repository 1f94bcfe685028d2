"""States that are loaded: by name, from older versions, and from other packages."""
