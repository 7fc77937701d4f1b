"""What the zygote runs once, so that pytest has loaded what passing and failing tests need."""


def test_passes() -> None:
    assert 1 == 1


def test_fails() -> None:
    assert [1] == [2]
