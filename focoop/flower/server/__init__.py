"""The coordinator's Flower app: rounds, replies and their checks, and what its people see."""
