"""Datasets: a task that is repeated over rows."""
