"""The name by which verifiers finds the gym: it looks for environments among the modules at the top."""

from trainer_client.adapters.verifiers import GymEnv, GymTaskset

__all__ = ["GymEnv", "GymTaskset"]
