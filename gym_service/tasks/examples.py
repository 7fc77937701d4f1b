"""Tasks to start from, as the files of a folder by their paths (`scaffold`)."""

WITH_PYTEST = {
    "task.toml": """\
# What the policy is asked to do.
request = "total in prices.py does not do what its docstring says. Repair it; `pytest` runs the tests that are there."
# Which decisions the task takes part in: train, validation or test.
split = "train"
# The suite that it is put into.
suite = "own"
""",
    "repo/prices.py": '''\
"""Prices of an order."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in percent of it."""
    return sum(prices) - discount_percent
''',
    # A plain `pytest` has the folder of the tests on its path alone.
    "repo/pytest.ini": """\
[pytest]
pythonpath = .
""",
    "gold/prices.py": '''\
"""Prices of an order."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in percent of it."""
    return sum(prices) * (100 - discount_percent) / 100
''',
    "public/test_total.py": """\
from prices import total


def test_prices_are_added():
    assert total([2, 3]) == 5


def test_nothing_costs_nothing():
    assert total([]) == 0
""",
    "hidden/test_discount.py": """\
from prices import total


def test_a_tenth_less():
    assert total([200], 10) == 180


def test_half_of_several():
    assert total([10, 30], 50) == 20


def test_nothing_is_left():
    assert total([70, 80], 100) == 0
""",
}
WITH_COMMAND = {
    "task.toml": """\
# What the policy is asked to do.
request = "total in Prices.pm does not do what its comment says. Repair it; `perl tests/total.t` runs some tests."
# Which decisions the task takes part in: train, validation or test.
split = "train"
# The suite that it is put into.
suite = "own"
# What runs one test file; exit status 0 says that it passes.
test_command = ["perl", "{file}"]
# How test files are called. Others beside them are data, or help the tests.
tests = "*.t"
# What a solution may change; ** stands for any folders.
sources = ["*.pm"]
""",
    "repo/Prices.pm": """\
package Prices;
use strict;
use warnings;

# The sum of the prices, less a discount in percent of it.
sub total {
    my ($prices, $discount_percent) = @_;
    my $sum = 0;
    $sum += $_ for @$prices;
    return $sum - ($discount_percent // 0);
}

1;
""",
    "gold/Prices.pm": """\
package Prices;
use strict;
use warnings;

# The sum of the prices, less a discount in percent of it.
sub total {
    my ($prices, $discount_percent) = @_;
    my $sum = 0;
    $sum += $_ for @$prices;
    return $sum * (100 - ($discount_percent // 0)) / 100;
}

1;
""",
    "public/total.t": """\
use strict;
use warnings;
use lib '.';
use Test::More;
use Prices;

is(Prices::total([2, 3]), 5, 'prices are added');
is(Prices::total([]), 0, 'nothing costs nothing');
done_testing;
""",
    "hidden/discount.t": """\
use strict;
use warnings;
use lib '.';
use Test::More;
use Prices;

is(Prices::total([200], 10), 180, 'a tenth less');
is(Prices::total([10, 30], 50), 20, 'half of several');
is(Prices::total([70, 80], 100), 0, 'nothing is left');
done_testing;
""",
}
