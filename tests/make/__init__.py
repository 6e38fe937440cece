"""The commands of the Makefile: environments, tests, linters, locks, benchmarks, demo.

They run before anything is installed, so they need the standard library only.
"""
