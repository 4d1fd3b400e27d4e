"""The parts of the reference backend: a function for each kind of mixer and feed-forward, in NumPy."""
