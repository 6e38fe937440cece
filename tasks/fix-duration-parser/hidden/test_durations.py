import random

import pytest
from durations import parse, render


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45m", 2700), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800), ("1d 1h 1m 1s", 90061), ("90", 90), ("0s", 0)],
)
def test_all_parts_add_up(text, seconds):
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "abc", "5x", "1h-30m", "1h 30", "h", "1.5h", "5mm"])
def test_nonsense_is_rejected(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (3601, "1h1s"), (5400, "1h30m"), (90000, "1d1h"), (172800, "2d")],
)
def test_largest_units_come_first(seconds, text):
    assert render(seconds) == text


def test_what_was_rendered_parses_back():
    rng = random.Random(7)
    for seconds in [*range(200), *(rng.randrange(10**7) for _ in range(500))]:
        assert parse(render(seconds)) == seconds
