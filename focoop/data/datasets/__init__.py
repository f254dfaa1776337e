"""Public datasets: every file that declares a `DATASET` is one, named by the file."""
