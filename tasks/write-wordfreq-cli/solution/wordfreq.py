"""Counts the words of files or of standard input."""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def read(name: str) -> str:
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode("utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--top", type=positive, default=10, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    counts: Counter[str] = Counter()
    for name in options.files or ["-"]:
        try:
            text = read(name)
        except (OSError, UnicodeDecodeError) as error:
            sys.stderr.write(f"wordfreq: {name}: {error}\n")
            return 1
        counts.update(WORD.findall(text.lower()))

    top = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[: options.top]
    if options.json:
        output = json.dumps(dict(top), ensure_ascii=False) + "\n"
    else:
        output = "".join(f"{count}\t{word}\n" for word, count in top)
    sys.stdout.buffer.write(output.encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
