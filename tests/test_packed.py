"""A line of sequences gives each of them what it would get alone."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trainer_client.models.packed import SharedPrefix, hidden_states, use_packed_attention

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
PREFIX, REST = list(range(3, 10)), [[11, 12, 13], [14], [15, 16, 17, 18, 19]]


@pytest.fixture(params=[(LlamaForCausalLM, LlamaConfig), (Qwen3ForCausalLM, Qwen3Config)])
def model(request):
    kind, config = request.param
    torch.manual_seed(0)
    return kind(config(**SIZES)).double().eval()


def alone(model, ids):
    return model.base_model(torch.tensor([ids])).last_hidden_state[0]


def packed(model, prefix, rest):
    ids = [*prefix, *(token for each in rest for token in each)]
    positions = [*range(len(prefix))]
    for each in rest:
        positions += range(len(prefix), len(prefix) + len(each))
    layout = SharedPrefix(len(prefix), tuple(map(len, rest)))
    return hidden_states(model, torch.tensor(ids), torch.tensor(positions), layout)


@pytest.mark.parametrize("prefix", [PREFIX, []])
def test_each_sequence_gets_what_it_would_get_alone(model, prefix):
    use_packed_attention(model)

    line = packed(model, prefix, REST).split([len(prefix), *map(len, REST)])

    for piece, each in zip(line[1:], REST, strict=True):
        torch.testing.assert_close(piece, alone(model, prefix + each)[len(prefix) :])


def test_gradients_are_those_of_the_sequences_one_by_one(model):
    for each in REST:
        alone(model, PREFIX + each)[len(PREFIX) :].square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.base_model.named_parameters()}
    model.zero_grad()
    use_packed_attention(model)

    packed(model, PREFIX, REST)[len(PREFIX) :].square().sum().backward()

    for name, parameter in model.base_model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_without_a_layout_the_model_works_as_before(model):
    ids, mask = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    before = model(ids, attention_mask=mask).logits
    use_packed_attention(model)

    torch.testing.assert_close(model(ids, attention_mask=mask).logits, before)


def test_a_model_that_would_look_across_sequences_is_refused(model):
    with pytest.raises(ValueError, match="call use_packed_attention"):
        packed(model, PREFIX, REST)


def test_a_model_with_a_sliding_window_is_refused():
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))

    with pytest.raises(ValueError, match="choose a model where it is"):
        use_packed_attention(model)
