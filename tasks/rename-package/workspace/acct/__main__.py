"""python -m acct"""

import argparse
import os
import sys
from pathlib import Path

from acct import sums
from acct.registry import load


def main() -> None:
    parser = argparse.ArgumentParser(prog="acct")
    parser.add_argument("file", type=Path)
    parser.add_argument("--format", default="plain")
    options = parser.parse_args()
    sys.stdout.write(load(options.format)(sums(options.file), os.environ.get("ACCT_CURRENCY", "EUR")))


if __name__ == "__main__":
    main()
