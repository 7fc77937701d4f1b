"""A rollout of slime that plays in the gym. It was run against a stub of slime only, never with slime itself.

    --custom-generate-function-path trainer_client.adapters.examples.slime.generate
    --dynamic-sampling-filter-path trainer_client.adapters.examples.slime.keep_group

A sample has the name of a task as `metadata["task_id"]`; its prompt is not used. SGLang samples from the ids that it is
given; what it sampled and what the gym appends make up the sample, and nothing is encoded again.
"""

from collections.abc import Sequence
from typing import Any

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

from trainer_client.blocking import process_gym
from trainer_client.episode import open_with_ids


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Plays an episode to the end, or until it is as long as `--rollout-max-context-len` allows.

    A sample of which the gym could not tell whether it is right has the reward None: `keep_group` drops its group.
    """
    gym, tokenizer = process_gym(), GenerateState(args).tokenizer
    episode = await open_with_ids(
        tokenizer,
        sample.metadata["task_id"],
        sample.metadata.get("toolset", "coding"),
        group=f"slime/{sample.group_index}",
        index=sample.index,
    )
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    try:
        while episode.outcome is None and len(episode.token_ids) < args.rollout_max_context_len:
            request = {
                "input_ids": list(episode.token_ids),
                "sampling_params": sampling_params,
                "return_logprob": True,
            }
            told = (await post(url, request))["meta_info"]
            if told["finish_reason"]["type"] == "abort":
                sample.status = Sample.Status.ABORTED
                return sample
            sampled = told["output_token_logprobs"]
            logprobs, ids = [each[0] for each in sampled], [each[1] for each in sampled]
            await gym.do(episode.sampled(ids, logprobs))
        sample.reward = await gym.do(episode.reward("context_overflow"))
    finally:
        await gym.do(episode.close())
    start = episode.prompt_length
    sample.tokens = episode.token_ids
    sample.response_length = len(episode.token_ids) - start
    sample.response = tokenizer.decode(episode.token_ids[start:])
    sample.loss_mask = episode.mask[start:]
    sample.rollout_log_probs = episode.logprobs[start:]
    cut = episode.outcome is not None and episode.outcome.truncated
    sample.status = Sample.Status.TRUNCATED if cut else Sample.Status.COMPLETED
    sample.remove_sample = sample.reward is None
    return sample


def keep_group(args: Any, samples: Sequence[Any], **_: Any) -> bool:
    """Says whether a group can be learned from: a sample without a reward would be a 0 in its baseline."""
    return all(sample.reward is not None for sample in samples)
