import unittest
from pathlib import Path
from unittest import mock

import acct
from acct import registry


class AcctTest(unittest.TestCase):
    def test_sums(self):
        self.assertEqual(acct.sums(Path("data/bank.csv")), {"DE-1": 70, "DE-2": 250})

    def test_a_format_is_found_without_a_listing(self):
        render = registry.load("plain", Path("no-such-file.json"))
        self.assertEqual(render({"A": 1}, "EUR"), "A 1 EUR\n")

    def test_loading_goes_by_dotted_name(self):
        with mock.patch("acct.formats.as_json.render", return_value="patched"):
            self.assertEqual(registry.load("json")({}, "EUR"), "patched")
