"""A shopping cart. All amounts are integers, in cents."""

SHIPPING = 490
FREE_SHIPPING_FROM = 5000
FIVER_FROM = 2000
CODES = frozenset({"TENOFF", "FIVER", "FREESHIP"})


class Cart:
    def __init__(self) -> None:
        self._lines: list[tuple[str, int, int]] = []
        self._code: str | None = None

    def add(self, name: str, price: int, count: int = 1) -> None:
        if price < 0 or count < 1:
            raise ValueError("a price is not negative and a count at least 1")
        self._lines.append((name, price, count))

    def apply_code(self, code: str) -> None:
        """Sets the cart's one discount code; whether it counts is decided when the total is asked for."""
        name = code.strip().upper()
        if name not in CODES:
            raise ValueError(f"unknown discount code: {code!r}")
        self._code = name

    def goods(self) -> int:
        """What the goods cost, before any discount."""
        return sum(price * count for _, price, count in self._lines)

    def discount(self) -> int:
        """What the code takes off the goods."""
        if self._code == "TENOFF":
            return self.goods() // 10
        if self._code == "FIVER" and self.goods() >= FIVER_FROM:
            return min(500, self.goods())
        return 0

    def shipping(self) -> int:
        if not self._lines or self._code == "FREESHIP" or self.goods() >= FREE_SHIPPING_FROM:
            return 0
        return SHIPPING

    def total(self) -> int:
        return self.goods() - self.discount() + self.shipping()
