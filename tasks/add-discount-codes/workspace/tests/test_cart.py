import unittest

from shop.cart import Cart


class CartTest(unittest.TestCase):
    def test_an_empty_cart_costs_nothing(self):
        self.assertEqual(Cart().total(), 0)

    def test_shipping_is_added(self):
        cart = Cart()
        cart.add("mug", 900, 2)
        self.assertEqual(cart.total(), 1800 + 490)

    def test_large_orders_ship_free(self):
        cart = Cart()
        cart.add("lamp", 5000)
        self.assertEqual(cart.total(), 5000)
