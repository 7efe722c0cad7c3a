"""The terminal dashboard: a process of its own that draws what the process of the run sends twice a second."""
