"""Adds up bank statements."""

from acct.statement import sums

__all__ = ["sums"]
