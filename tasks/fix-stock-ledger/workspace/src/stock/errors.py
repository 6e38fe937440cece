"""What can go wrong."""


class OverCapacity(ValueError):
    """More pieces than a ledger may hold."""
