"""Results of arms for tests."""

from collections.abc import Sequence

from trainer_client.ablation import ArmResult, SeedRun


def make_arm(name: str, *rates: Sequence[float], public_only: float = 0.0) -> ArmResult:
    """Returns the result of an arm: for each seed from 0 on the pass rates of tasks a, b, c and so on."""
    return ArmResult(
        name,
        tuple(
            SeedRun(
                seed,
                {chr(97 + place): rate for place, rate in enumerate(of_seed)},
                public_only=public_only,
                reward_late=0.5,
                pass_rate_late=0.5,
                public_only_late=public_only,
                entropy_late=0.2,
                weights_sha256="ab" * 32,
            )
            for seed, of_seed in enumerate(rates)
        ),
    )
