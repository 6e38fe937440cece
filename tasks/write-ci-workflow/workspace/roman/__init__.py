"""Roman numerals."""

VALUES = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}


def to_roman(number: int) -> str:
    if not 0 < number < 4000:
        raise ValueError(number)
    out = ""
    for letters, value in VALUES.items():
        count, number = divmod(number, value)
        out += letters * count
    return out
