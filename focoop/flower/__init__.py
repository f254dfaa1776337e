"""The same methods on Flower: thin adapters over the functions the simulator calls."""
