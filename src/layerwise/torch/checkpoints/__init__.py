"""The loading of states: by name, from older versions, and from other packages."""
