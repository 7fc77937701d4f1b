"""Small git repositories, and rows about them as SWE-bench has them."""

import os
import subprocess
from pathlib import Path

PRICES = '''"""Prices of an order."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in percent of it."""
    return sum(prices) - discount_percent


def count(prices):
    """How many there are."""
    return len(prices)
'''
TESTS = """import pytest

from shop.prices import count, total


def test_nothing_costs_nothing():
    assert total([]) == 0


@pytest.mark.parametrize("prices", [[1], [2, 3]])
def test_count(prices):
    assert count(prices) == len(prices)


def test_a_discount():
    assert total([100], 10) == 90
"""
FILES = {
    "README.md": "A shop.\n",
    "conftest.py": "",
    "shop/__init__.py": "",
    "shop/prices.py": PRICES,
    "tests/test_prices.py": TESTS,
    "tests/test_old.py": "def test_old():\n    assert 1 == 1\n",
}
PATCH = """diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1 +1,2 @@
 A shop.
+Discounts are percentages.
diff --git a/shop/prices.py b/shop/prices.py
--- a/shop/prices.py
+++ b/shop/prices.py
@@ -3,7 +3,7 @@

 def total(prices, discount_percent=0):
     \"\"\"The sum of the prices, less a discount in percent of it.\"\"\"
-    return sum(prices) - discount_percent
+    return sum(prices) * (100 - discount_percent) / 100


 def count(prices):
"""
TEST_PATCH = """diff --git a/tests/data/expected.txt b/tests/data/expected.txt
new file mode 100644
--- /dev/null
+++ b/tests/data/expected.txt
@@ -0,0 +1 @@
+20
diff --git a/tests/test_old.py b/tests/test_old.py
deleted file mode 100644
--- a/tests/test_old.py
+++ /dev/null
@@ -1,2 +0,0 @@
-def test_old():
-    assert 1 == 1
diff --git a/tests/test_prices.py b/tests/test_prices.py
--- a/tests/test_prices.py
+++ b/tests/test_prices.py
@@ -14,4 +14,17 @@


 def test_a_discount():
-    assert total([100], 10) == 90
+    assert total([200], 10) == 180
+
+
+@pytest.mark.parametrize(("percent", "expected"), [(0, 40), (50, 20), (100, 0)])
+def test_discounts(percent, expected):
+    assert total([10, 30], percent) == expected
+
+
+def test_half_is_as_written():
+    from pathlib import Path
+
+    text = Path(__file__).with_name("data").joinpath("expected.txt").read_text()
+    assert text == "20\\n"
+    assert total([10, 30], 50) == 20
"""
FILE = "tests/test_prices.py"
ROW = {
    "instance_id": "acme__shop-1",
    "repo": "acme/shop",
    "problem_statement": "A discount of 10 takes 10 from the sum, whatever the sum is.",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": [
        f"{FILE}::test_a_discount",
        f"{FILE}::test_discounts[100-0]",
        f"{FILE}::test_discounts[50-20]",
        f"{FILE}::test_half_is_as_written",
    ],
    "PASS_TO_PASS": [
        f"{FILE}::test_count[prices0]",
        f"{FILE}::test_count[prices1]",
        f"{FILE}::test_discounts[0-40]",
        f"{FILE}::test_nothing_costs_nothing",
    ],
    "version": "1.0",
}


def git(folder, *arguments):
    """Runs git in a folder, with nothing of this machine's settings."""
    who = {
        f"GIT_{role}_{part}": f"a@{role}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    when = {"GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z"}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=who | when | alone, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_clone(folder: Path, files=FILES):
    """Makes a repository of one commit; returns the commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    write(folder, files)
    return commit(folder)


def write(folder, files):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return git(folder, "rev-parse", "HEAD")
