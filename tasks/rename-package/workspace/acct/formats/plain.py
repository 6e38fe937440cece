"""One line for each account."""


def render(sums: dict[str, int], currency: str) -> str:
    return "".join(f"{number} {amount} {currency}\n" for number, amount in sorted(sums.items()))
