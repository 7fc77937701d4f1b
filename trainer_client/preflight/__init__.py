"""What is tried before step 1, so that a run that could only mislead does not start.

The checks take the very batch that step 1 will learn from, and change nothing: neither weights nor the state of the
optimizer, no random number is drawn, and an update that is tried out is tried on a copy. Half of them are about the
trainer (`of_trainer`), half about the gym (`of_gym`); `gate` puts them before a run, `python -m
trainer_client.preflight` carries them out alone.
"""
