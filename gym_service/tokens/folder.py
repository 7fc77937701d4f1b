"""Opens the tokenizer of a model folder, as transformers writes it, or of a model in its local cache."""

import json
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from gym_service.errors import InvalidRequest
from gym_service.tokens.tokenizer import ChatTokenizer

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
"""What transformers gives to a template beside the messages."""


def open_tokenizer(folder_or_name: str) -> ChatTokenizer:
    """Opens a tokenizer with its chat template, its end-of-turn and its other stop tokens.

    The end-of-turn is the eos_token; further stop tokens are those of the generation_config. Arguments of the template
    are the special tokens that it names, if it does. Raises ValueError, which names the folder and what it lacks.
    """
    folder = _find(folder_or_name)
    content = _bytes_of(folder, "tokenizer.json")
    config = _read(folder, "tokenizer_config.json", needed=True)
    template = _template(folder, config)
    end_of_turn = _text(config.get("eos_token"))
    if not end_of_turn:
        raise ValueError(f"{folder}: tokenizer_config.json has no eos_token, which ends a turn")
    arguments = {name: text for name in _SPECIAL if name in template and (text := _text(config.get(name)))}
    try:
        return ChatTokenizer(content, template, end_of_turn, arguments, _stops(folder))
    except InvalidRequest as error:
        raise ValueError(f"{folder}: {error}") from None


def _find(folder_or_name: str) -> Path:
    if Path(folder_or_name).is_dir():
        return Path(folder_or_name)
    try:
        for local in (True, False):
            try:
                found = snapshot_download(
                    folder_or_name, allow_patterns=list(_FILES), local_files_only=local, max_workers=1
                )
                return Path(found)
            except LocalEntryNotFoundError as error:
                reason = str(error).splitlines()[0]
    except HFValidationError:
        reason = "it is no name of a model"
    except Exception as error:
        # Whatever the hub answers: no such model, one behind a licence, no connection.
        reason = str(error).splitlines()[0]
    raise ValueError(
        f"{folder_or_name}: no such folder, not in the local cache of transformers, and not to be fetched: {reason}"
    )


def _template(folder: Path, config: Mapping[str, object]) -> str:
    path = folder / "chat_template.jinja"
    template = _bytes_of(folder, path.name).decode() if path.is_file() else config.get("chat_template")
    if isinstance(template, list):  # Several by name, in older folders.
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ValueError(
            f"{folder}: no chat template, neither as chat_template.jinja nor in tokenizer_config.json; "
            "is it an instruct model?"
        )
    return template


def _stops(folder: Path) -> list[int]:
    given = _read(folder, "generation_config.json").get("eos_token_id")
    stops = given if isinstance(given, list) else [] if given is None else [given]
    numbers = [stop for stop in stops if isinstance(stop, int)]
    if len(numbers) < len(stops):
        raise ValueError(
            f"{folder}: eos_token_id in generation_config.json must be a number or a list of numbers"
        )
    return numbers


def _read(folder: Path, name: str, *, needed: bool = False) -> dict[str, object]:
    if not needed and not (folder / name).is_file():
        return {}
    try:
        content = json.loads(_bytes_of(folder, name))
    except ValueError as error:
        raise ValueError(f"{folder}: {name} is no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{folder}: {name} is no JSON object")
    return content


def _bytes_of(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ValueError(f"{folder}: {name} cannot be read: {error.strerror}") from None


def _text(token: object) -> str:
    """The text of a token, which older folders write as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
