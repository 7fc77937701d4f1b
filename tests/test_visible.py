"""Text from outside is shown so that nothing in it hides."""

import pytest

from gym_service.visible import printable, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def f(x): return 'é'", "def f(x): return 'é'"),
        ("a\u202eb", "a\\u{202E}b"),
        ("a\u3164b", "a\\u{3164}b"),
        ("\x1b[31m", "\\u{001B}[31m"),
        ("\ud800", "\\u{D800}"),
        ("", ""),
    ],
)
def test_every_character_can_be_seen(text, shown):
    assert printable(text) == visible(text) == shown


def test_lines_and_tabs_are_kept_where_there_is_more_than_one_line():
    assert visible("a\tb\r\n\n") == "a\tb\\u{000D}\n\n"
    assert printable("a\tb\n") == "a\\u{0009}b\\u{000A}"
