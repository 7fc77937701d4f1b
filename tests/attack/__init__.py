"""What hostile code and hostile calls do to a real service: nothing. One test per attack, each with an honest twin."""
