"""Runs the workspace's tests/test_discounts.py against one correct and several broken carts.

Prints the share of broken ones that the tests notice: 0 if they reject the correct one, or if there are none.
Called with the workspace as current folder; works in copies of it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORRECT = """
SHIPPING, FREE_SHIPPING_FROM = 490, 5000
CODES = ("TENOFF", "FIVER", "FREESHIP")


class Cart:
    def __init__(self):
        self._lines = []
        self._code = None

    def add(self, name, price, count=1):
        if price < 0 or count < 1:
            raise ValueError("a price is not negative and a count at least 1")
        self._lines.append((name, price, count))

    def apply_code(self, code):
        code = code.strip().upper()
        if code not in CODES:
            raise ValueError(code)
        self._code = code

    def goods(self):
        return sum(price * count for _, price, count in self._lines)

    def discount(self):
        if self._code == "TENOFF":
            return self.goods() // 10
        if self._code == "FIVER" and self.goods() >= 2000:
            return 500
        return 0

    def shipping(self):
        if not self._lines or self.goods() >= FREE_SHIPPING_FROM or self._code == "FREESHIP":
            return 0
        return SHIPPING

    def total(self):
        return self.goods() - self.discount() + self.shipping()
"""

# what is broken: text of the correct one, what stands there instead
BROKEN = {
    "TENOFF does nothing": ("return self.goods() // 10", "return 0"),
    "the discount is rounded up": ("self.goods() // 10", "-(-self.goods() // 10)"),
    "FIVER has no condition": (" and self.goods() >= 2000", ""),
    "FIVER wants more than 20.00": ("self.goods() >= 2000", "self.goods() > 2000"),
    "FREESHIP does nothing": (' or self._code == "FREESHIP"', ""),
    "lower case is refused": (".strip().upper()", ".strip()"),
    "unknown codes are taken": ("raise ValueError(code)", "return"),
    "the first code stays": ("self._code = code", "self._code = self._code or code"),
    "the condition is looked at on entry": ("self._code = code", 'self._code = None if code == "FIVER" and self.goods() < 2000 else code'),
    "shipping depends on the discounted price": (
        "self.goods() >= FREE_SHIPPING_FROM",
        "self.goods() - self.discount() >= FREE_SHIPPING_FROM",
    ),
}


def accepted(workspace: Path, cart: str) -> bool:
    """Whether the tests pass, and at least one ran, with this cart in place of the workspace's own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        (copy / "shop").mkdir(parents=True)
        (copy / "shop" / "__init__.py").touch()
        (copy / "shop" / "cart.py").write_text(cart, encoding="utf-8")
        shutil.copytree(workspace / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "unittest", "discover", "-s", "tests", "-t", ".", "-p", "test_discounts.py"]
        done = subprocess.run(command, cwd=copy, capture_output=True, encoding="utf-8", errors="replace", timeout=30)
    return done.returncode == 0 and "\nRan 0 tests" not in done.stderr


def main() -> None:
    workspace = Path.cwd()
    if not accepted(workspace, CORRECT):
        sys.stderr.write("tests/test_discounts.py is missing, empty, or rejects a correct implementation\n")
        sys.stdout.write("0\n")
        return
    missed = []
    for what, (text, instead) in BROKEN.items():
        if CORRECT.count(text) != 1:
            raise SystemExit(f"{what}: {text!r} is not there once")
        if accepted(workspace, CORRECT.replace(text, instead)):
            missed.append(what)
    for what in missed:
        sys.stderr.write(f"not noticed: {what}\n")
    sys.stdout.write(f"{1 - len(missed) / len(BROKEN):.2f}\n")


main()
