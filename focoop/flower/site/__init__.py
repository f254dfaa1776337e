"""A site's Flower app: its policy, its releases, its part in secure sums, and its status."""
