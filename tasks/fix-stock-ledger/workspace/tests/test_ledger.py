from .factories import ledger


def test_adding_and_removing():
    shelf = ledger(bolt=3)
    shelf.add("bolt", 2)
    shelf.remove("bolt", 4)
    assert shelf.count("bolt") == 1
