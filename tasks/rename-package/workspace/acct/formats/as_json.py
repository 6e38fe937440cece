"""JSON."""

import json


def render(sums: dict[str, int], currency: str) -> str:
    return json.dumps({"currency": currency, "sums": sums}, sort_keys=True) + "\n"
