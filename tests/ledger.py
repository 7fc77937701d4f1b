"""A small package of our own with its tests, as a source distribution: what repository-level tasks are made of."""

import gzip
import io
import tarfile

from gym_service.synthesis import synthesize

REQUIREMENT = "ledger==1.0"

_MONEY = '''"""Amounts of money in whole cents."""


def parse(text):
    """Turn '12.34' into 1234 cents."""
    whole, _, cents = text.partition(".")
    if len(cents) > 2:
        raise ValueError(text)
    return int(whole) * 100 + int((cents + "00")[:2])


def show(cents):
    """Turn 1234 cents into '12.34'."""
    return f"{cents // 100}.{cents % 100:02d}"


def split(cents, count):
    """Share cents among count people; the first ones get the rest, a cent each."""
    share, rest = divmod(cents, count)
    return [share + 1 if number < rest else share for number in range(count)]


def largest(amounts, default=None):
    """The largest amount, or the default where there is none."""
    found = default
    for amount in amounts:
        if found is None or amount > found:
            found = amount
    return found


def within(cents, low, high):
    """Whether low <= cents <= high."""
    return low <= cents and cents <= high
'''

_BOOK = '''"""A book of entries, each an account and an amount."""

from ledger.money import show


class Book:
    def __init__(self):
        self.entries = []

    def add(self, account, cents):
        if cents == 0:
            raise ValueError("an entry of nothing")
        self.entries.append((account, cents))
        return len(self.entries)

    def balance(self, account):
        """The sum of an account."""
        total = 0
        for name, cents in self.entries:
            if name == account:
                total += cents
        return total

    def accounts(self):
        """The accounts in the order of their first entries."""
        return list(dict.fromkeys(name for name, _ in self.entries))

    def overdrawn(self):
        """The accounts below zero."""
        return [name for name in self.accounts() if self.balance(name) < 0]

    def lines(self, start=0):
        """The entries from a number on, as text."""
        return [f"{name} {show(cents)}" for name, cents in self.entries[start:]]
'''

_TEST_MONEY = """import pytest

from ledger.money import largest, parse, show, split, within


def test_parse_whole():
    assert parse("12") == 1200


# A comment that goes with its test.
def test_parse_cents():
    assert parse("12.34") == 1234
    assert parse("0.05") == 5


def test_parse_one_digit():
    assert parse("1.5") == 150


def test_parse_too_fine():
    with pytest.raises(ValueError):
        parse("1.234")


@pytest.mark.parametrize("cents, text", [(1234, "12.34"), (5, "0.05"), (100, "1.00")])
def test_show(cents, text):
    assert show(cents) == text


def test_show_zero():
    assert show(0) == "0.00"


def test_split_even():
    assert split(90, 3) == [30, 30, 30]


def test_split_rest():
    assert split(100, 3) == [34, 33, 33]
    assert sum(split(101, 7)) == 101


def test_split_one():
    assert split(7, 1) == [7]


def test_largest():
    assert largest([3, 9, 4]) == 9


def test_largest_first():
    assert largest([9, 3]) == 9


def test_largest_of_none():
    assert largest([]) is None
    assert largest([], default=5) == 5


def test_within():
    assert within(5, 1, 9)
    assert not within(10, 1, 9)


def test_within_ends():
    assert within(1, 1, 9)
    assert within(9, 1, 9)
"""

_TEST_BOOK = """import unittest

from ledger.book import Book


class BookTests(unittest.TestCase):
    def setUp(self):
        self.book = Book()
        self.book.add("ann", 500)
        self.book.add("bob", -200)
        self.book.add("ann", -125)

    def test_add(self):
        self.assertEqual(self.book.add("cid", 1), 4)

    def test_add_nothing(self):
        with self.assertRaises(ValueError):
            self.book.add("cid", 0)

    def test_balance(self):
        self.assertEqual(self.book.balance("ann"), 375)
        self.assertEqual(self.book.balance("bob"), -200)

    def test_balance_unknown(self):
        self.assertEqual(self.book.balance("zoe"), 0)

    def test_accounts(self):
        self.assertEqual(self.book.accounts(), ["ann", "bob"])

    def test_overdrawn(self):
        self.assertEqual(self.book.overdrawn(), ["bob"])

    def test_not_overdrawn_at_zero(self):
        self.book.add("bob", 200)
        self.assertEqual(self.book.overdrawn(), [])

    def test_lines(self):
        self.assertEqual(self.book.lines(1), ["bob -2.00", "ann -2.75"])

    def test_all_lines(self):
        self.assertEqual(len(self.book.lines()), 3)
        self.assertIn("ann 5.00", self.book.lines())
"""

FILES = {
    "ledger/__init__.py": '"""Money."""\n',
    "ledger/money.py": _MONEY,
    "ledger/book.py": _BOOK,
    "tests/__init__.py": "",
    "tests/test_money.py": _TEST_MONEY,
    "tests/test_book.py": _TEST_BOOK,
    "pyproject.toml": '[project]\nname = "ledger"\nversion = "1.0"\n',
    "README.md": "# ledger\n",
    "LICENSE": "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n",
    "PKG-INFO": "Metadata-Version: 2.1\nName: ledger\nVersion: 1.0\nLicense: MIT\n",
}


def archive(files=FILES):
    """The source distribution."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(f"ledger-1.0/{path}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    # Without the time, so that it has the same hash each time.
    return gzip.compress(buffer.getvalue(), mtime=0)


async def make_tasks(*arguments):
    """Makes tasks as `synthesize` does, and gives all of them."""
    return [task async for task in synthesize(*arguments)]
