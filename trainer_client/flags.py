"""The flags of the main job: one for each setting of a run."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from trainer_client.config import RunConfig, field_docs
from trainer_client.presets import PRESETS, described

_DESCRIPTIONS = {
    "run": "Trains a policy in the gym and reports what it learned.",
    "preflight": "Tries what a run stands on, trainer and gym, and starts none.",
}


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps everything but the presets, which have lines of their own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            super(_HelpFormatter, self)._fill_text(line, width, "  ") for line in text.split("\n")
        )


def parse_flags(argv: Sequence[str] | None = None, program: str = "run") -> tuple[dict[str, Any], bool]:
    """Parses the command line of the main job, or of another program with its flags.

    Returns the settings that were given, by field, with those of a preset that is named, and whether to go on with
    an earlier run. A setting that was not given is absent, so that --resume can tell it from one that was.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m trainer_client.{program}",
        description=_DESCRIPTIONS[program],
        epilog=described(),
        formatter_class=_HelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        default=False,
        help="Go on with the run --name from its last checkpoint.",
    )
    add_settings(parser, [field.name for field in fields(RunConfig)])
    given = vars(parser.parse_args(argv))
    resume = bool(given.pop("resume"))
    if resume and not given.get("name"):
        parser.error("--resume needs --name, the run to go on with")
    given = {**PRESETS.get(given.get("preset", ""), {}), **given}
    try:
        RunConfig(**given)
    except ValueError as error:
        parser.error(str(error))
    return given, resume


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds a flag for each of these settings of a run, with its docstring as help."""
    docs = field_docs()
    for field in fields(RunConfig):
        if field.name not in names:
            continue
        shown = f"{docs[field.name]} (default: {field.default})" if field.default != "" else docs[field.name]
        flag, text = "--" + field.name.replace("_", "-"), shown.replace("%", "%%")
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            assert isinstance(field.type, type)
            parser.add_argument(flag, type=field.type, help=text, metavar=field.type.__name__.upper())
