"""What can go wrong."""


class OverCapacity(ValueError):
    """More pieces than a ledger may hold."""


class OutOfStock(ValueError):
    """More pieces asked for than there are."""
