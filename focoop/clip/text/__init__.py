"""The prompt text engine: learnable contexts through a frozen text tower."""
