import unittest

from shop.cart import Cart


def cart(*prices, code=None):
    made = Cart()
    for price in prices:
        made.add("thing", price)
    if code is not None:
        made.apply_code(code)
    return made


class DiscountTest(unittest.TestCase):
    def test_tenoff_is_rounded_down(self):
        self.assertEqual(cart(1009, code="TENOFF").total(), 909 + 490)

    def test_fiver_needs_twenty(self):
        self.assertEqual(cart(1999, code="FIVER").total(), 1999 + 490)
        self.assertEqual(cart(2000, code="FIVER").total(), 1500 + 490)

    def test_freeship(self):
        self.assertEqual(cart(1000, code="FREESHIP").total(), 1000)

    def test_any_case_and_blanks(self):
        self.assertEqual(cart(1000, code=" tenOff ").total(), 900 + 490)

    def test_unknown_codes(self):
        with self.assertRaises(ValueError):
            cart(1000, code="NOPE")

    def test_the_last_code_counts(self):
        made = cart(2000, code="TENOFF")
        made.apply_code("FREESHIP")
        self.assertEqual(made.total(), 2000)

    def test_the_condition_is_looked_at_late(self):
        made = cart(code="FIVER")
        made.add("thing", 2000)
        self.assertEqual(made.total(), 1500 + 490)

    def test_the_full_price_decides_about_shipping(self):
        self.assertEqual(cart(5000, code="TENOFF").total(), 4500)
