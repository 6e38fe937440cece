import random

from matching import Invoice, Payment, match


def slow_match(invoices, payments):
    """What `match` has always given."""
    still_open = list(enumerate(invoices))
    pairs, rest = [], []
    for payment in payments:
        fitting = [(i.due, n, i) for n, i in still_open if (i.customer, i.amount) == (payment.customer, payment.amount)]
        if fitting:
            _, taken, invoice = min(fitting, key=lambda entry: entry[:2])
            still_open = [entry for entry in still_open if entry[0] != taken]
            pairs.append((payment, invoice))
        else:
            rest.append(payment)
    return pairs, rest


class Record:
    """Has the fields of an invoice and a payment, counts how often they are read, and can't be compared or hashed."""

    reads = 0
    limit = 0  # where counting ends: what needs more is refused at once, instead of after minutes
    __hash__ = None

    def __init__(self, **fields):
        self._fields = fields

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        Record.reads += 1
        if Record.reads > Record.limit:
            raise AssertionError(f"more than {Record.limit} reads")
        return self._fields[name]

    def __eq__(self, other):
        raise AssertionError("a record was compared")


def reads_for(count, customers, amounts):
    rng = random.Random(count)
    invoices = [
        Record(
            number=str(n), customer=f"c{rng.randrange(customers)}", amount=rng.randrange(amounts), due=f"2024-01-{rng.randrange(1, 29):02}"
        )
        for n in range(count)
    ]
    payments = [Record(customer=f"c{rng.randrange(customers)}", amount=rng.randrange(amounts)) for _ in range(count)]
    Record.reads, Record.limit = 0, 100 * count
    match(invoices, payments)
    return Record.reads / count


def test_random_records_give_what_they_always_gave():
    rng = random.Random(3)
    for _ in range(150):
        invoices = [
            Invoice(str(n), rng.choice("abc"), rng.randrange(3), f"2024-01-0{rng.randrange(1, 5)}") for n in range(rng.randrange(25))
        ]
        payments = [Payment(rng.choice("abcd"), rng.randrange(4)) for _ in range(rng.randrange(25))]
        assert match(invoices, payments) == slow_match(invoices, payments)


def test_first_due_first_then_first_come():
    invoices = [Invoice("3", "a", 5, "2024-03-01"), Invoice("1", "a", 5, "2024-01-01"), Invoice("2", "a", 5, "2024-01-01")]
    pairs, rest = match(invoices, [Payment("a", 5)] * 4)
    assert [invoice.number for _, invoice in pairs] == ["1", "2", "3"]
    assert rest == [Payment("a", 5)]


def test_arguments_are_left_as_they_were_and_may_be_iterators():
    invoices, payments = [Invoice("1", "a", 5, "2024-01-01")], [Payment("a", 5), Payment("b", 5)]
    match(invoices, payments)
    assert (len(invoices), len(payments)) == (1, 2)
    assert match(iter(invoices), iter(payments)) == ([(payments[0], invoices[0])], [payments[1]])


def test_few_reads_when_all_differ():
    assert reads_for(3000, customers=3000, amounts=50) <= 12


def test_few_reads_when_all_are_alike():
    assert reads_for(3000, customers=1, amounts=1) <= 12


def test_reads_grow_in_proportion():
    assert reads_for(4000, customers=20, amounts=5) <= 2 * reads_for(500, customers=20, amounts=5)
