"""An agent loop of verl that plays in the gym. It was run against a stub of verl only, never with verl itself.

    actor_rollout_ref.rollout.agent.agent_loop_config_path=agent.yaml

    # agent.yaml
    - name: coding_gym
      _target_: trainer_client.adapters.examples.verl.GymAgentLoop

A row of the data set has `agent_name: coding_gym` and the name of a task as `extra_info.task_id`; its prompt is not
used. verl samples from the ids that it is given; what it sampled and what the gym appends make up the response, and
nothing is encoded again.
"""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from trainer_client.blocking import process_gym
from trainer_client.episode import open_with_ids


@register("coding_gym")
class GymAgentLoop(AgentLoopBase):
    """Plays one episode. verl makes one for each."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Plays to the end, or until the response is full.

        Raises:
            EpisodeLost: The gym lost the episode or could not grade it: no reward, which is not 0. verl counts it among
                its failed rollouts and leaves it out.
        """
        gym = process_gym()
        extra = row["extra_info"]
        episode = await open_with_ids(self.tokenizer, extra["task_id"], extra.get("toolset", "coding"))
        room = self.rollout_config.response_length
        start, request_id = episode.prompt_length, uuid4().hex
        try:
            while episode.outcome is None and len(episode.token_ids) - start < room:
                output = await self.server_manager.generate(
                    request_id=request_id, prompt_ids=list(episode.token_ids), sampling_params=sampling_params
                )
                ids, logprobs = list(output.token_ids), list(output.log_probs or ())
                await gym.do(episode.sampled(ids, logprobs))
            reward = await gym.do(episode.reward_or_raise())
        finally:
            await gym.do(episode.close())
        return AgentLoopOutput(
            prompt_ids=episode.token_ids[:start],
            response_ids=episode.token_ids[start:][:room],
            response_mask=episode.mask[start:][:room],
            response_logprobs=episode.logprobs[start:][:room],
            reward_score=reward,
            num_turns=2 * episode.turn,
            metrics={},
            extra_fields={"stop_reason": episode.outcome.stop_reason if episode.outcome else ""},
        )
