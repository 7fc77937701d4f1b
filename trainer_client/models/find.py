"""From what a user calls a model to the folder that it lies in."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from trainer_client.models.smollm import make_smollm2

SMOLLM2 = "smollm2"
_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt"]


def find_model(name: str) -> Path:
    """Returns the folder of a model: of `smollm2`, of a path, or of a name in the local cache, else on the hub.

    Raises:
        OSError: There is no such model; says what was tried.
        ModuleNotFoundError, ValueError: See `make_smollm2`.
    """
    if name == SMOLLM2:
        return make_smollm2()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    reason = "it has no weights as safetensors"
    for local in (True, False):
        try:
            found = Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=local))
            # A snapshot is there, too, where only a tokenizer was fetched, or a download was broken off.
            if any(found.glob("*.safetensors")):
                return found
        except HFValidationError:
            raise FileNotFoundError(f"model {name!r}: no such folder, and no name on a hub either") from None
        except (HfHubHTTPError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise FileNotFoundError(
        f"model {name!r}: there is no folder {folder}, and it is neither in the local cache of transformers nor to "
        f"be had from the hub ({reason}); give a folder, rl_base, sft_base or {SMOLLM2}, or, where the hub can be "
        f"reached: hf download {name}"
    )
