"""A shopping cart. All amounts are integers, in cents."""

SHIPPING = 490
FREE_SHIPPING_FROM = 5000


class Cart:
    def __init__(self) -> None:
        self._lines: list[tuple[str, int, int]] = []

    def add(self, name: str, price: int, count: int = 1) -> None:
        if price < 0 or count < 1:
            raise ValueError("a price is not negative and a count at least 1")
        self._lines.append((name, price, count))

    def goods(self) -> int:
        """What the goods cost, before any discount."""
        return sum(price * count for _, price, count in self._lines)

    def shipping(self) -> int:
        if not self._lines or self.goods() >= FREE_SHIPPING_FROM:
            return 0
        return SHIPPING

    def total(self) -> int:
        return self.goods() + self.shipping()
