"""A tokenizer by the folder of its model: what is there is taken, what lacks is named."""

import json

import pytest

from gym_service.tokens.folder import open_tokenizer
from tests.tokenizers import files, gym_tokenizer, qwen3_folder


@pytest.fixture
def folder(tmp_path):
    """The built-in model's tokenizer as transformers saves it."""
    from trainer_client.models import tiny

    tiny.build_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def change(path, **fields):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(
        json.dumps({name: value for name, value in (content | fields).items() if value is not None})
    )


def test_a_folder_is_the_tokenizer_that_a_client_would_register(folder):
    opened, registered = open_tokenizer(str(folder)), gym_tokenizer("tiny", {})

    assert opened.facts.stop_token_ids == registered.facts.stop_token_ids
    assert opened.facts.vocabulary_size == registered.facts.vocabulary_size


def test_qwen3_ends_a_turn_with_its_eos_token():
    assert open_tokenizer(str(qwen3_folder())).facts == gym_tokenizer("qwen3", {}).facts


@pytest.mark.parametrize(("stops", "ids"), [(1, (1,)), ([1, 3], (1, 3)), ([3], (1, 3))])
def test_the_stop_tokens_of_the_generation_count_as_well(folder, stops, ids):
    change(folder / "generation_config.json", eos_token_id=stops)

    assert open_tokenizer(str(folder)).facts.stop_token_ids == ids


def test_older_folders_are_understood(folder):
    (folder / "chat_template.jinja").unlink()
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": files("tiny")[1]}]
    change(folder / "tokenizer_config.json", chat_template=templates, eos_token={"content": "<|end|>"})

    assert open_tokenizer(str(folder)).facts.append_only


def test_a_template_gets_the_special_tokens_that_it_names(folder):
    (folder / "chat_template.jinja").write_text("{{ pad_token }}" + files("tiny")[1])

    prompt = open_tokenizer(str(folder)).prompt([])

    assert prompt.token_ids[0] == 0


@pytest.mark.parametrize(
    ("spoil", "lacks"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer_json is no tokenizer"),
        (lambda f: (f / "tokenizer_config.json").unlink(), "tokenizer_config.json cannot be read"),
        (lambda f: (f / "tokenizer_config.json").write_text("{"), "tokenizer_config.json is no valid JSON"),
        (lambda f: (f / "chat_template.jinja").unlink(), "no chat template"),
        (lambda f: change(f / "tokenizer_config.json", eos_token=None), "has no eos_token"),
        (lambda f: change(f / "tokenizer_config.json", eos_token="<|no|>"), "'<|no|>' is no token"),
        (lambda f: change(f / "generation_config.json", eos_token_id="x"), "must be a number"),
    ],
)
def test_what_a_folder_lacks_is_named_with_the_folder(folder, spoil, lacks):
    spoil(folder)

    with pytest.raises(ValueError, match=f"^{folder}: ") as refused:
        open_tokenizer(str(folder))

    assert lacks in str(refused.value)


def test_a_name_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(ValueError, match="no-such/model: no such folder, not in the local cache"):
        open_tokenizer("no-such/model")
