"""Federated out-of-distribution-aware context optimisation for CLIP-like models."""

__version__ = "0.1.0"
