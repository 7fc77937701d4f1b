"""Policies, the models behind them, and what builds the two that come with the trainer."""
