import pytest
from shop.cart import Cart


def cart(*prices, code=None):
    made = Cart()
    for price in prices:
        made.add("thing", price)
    if code is not None:
        made.apply_code(code)
    return made


@pytest.mark.parametrize(("price", "total"), [(1000, 900 + 490), (1009, 909 + 490), (5000, 4500), (5009, 4509), (9, 9 + 490)])
def test_tenoff(price, total):
    assert cart(price, code="TENOFF").total() == total


@pytest.mark.parametrize(("price", "total"), [(1999, 1999 + 490), (2000, 1500 + 490), (5000, 4500), (5400, 4900)])
def test_fiver(price, total):
    assert cart(price, code="FIVER").total() == total


def test_freeship():
    assert cart(1000, code="FREESHIP").total() == 1000


@pytest.mark.parametrize("code", ["tenoff", " TenOff ", "TENOFF\t"])
def test_case_and_blanks_do_not_count(code):
    assert cart(1000, code=code).total() == 900 + 490


@pytest.mark.parametrize("code", ["", "TEN OFF", "TWENTYOFF"])
def test_unknown_codes_are_refused(code):
    with pytest.raises(ValueError):
        cart(1000).apply_code(code)


def test_an_unknown_code_leaves_the_first_in_force():
    made = cart(1000, code="TENOFF")
    with pytest.raises(ValueError):
        made.apply_code("NOPE")
    assert made.total() == 900 + 490


def test_the_last_code_counts():
    made = cart(2000, code="TENOFF")
    made.apply_code("FREESHIP")
    assert made.total() == 2000


def test_conditions_are_looked_at_late():
    made = cart(code="FIVER")
    assert made.total() == 0
    made.add("thing", 1500)
    assert made.total() == 1500 + 490
    made.add("thing", 500)
    assert made.total() == 1500 + 490


def test_without_a_code_all_is_as_before():
    assert cart(1000).total() == 1490
    assert cart(5000).total() == 5000
