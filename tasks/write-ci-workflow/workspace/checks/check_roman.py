import unittest

from roman import to_roman


class RomanTest(unittest.TestCase):
    def test_numerals(self):
        for number, text in ((1, "I"), (4, "IV"), (1994, "MCMXCIV"), (3999, "MMMCMXCIX")):
            self.assertEqual(to_roman(number), text)

    def test_bounds(self):
        for number in (0, 4000):
            with self.assertRaises(ValueError):
                to_roman(number)
