"""Reports on this machine, and checks if a target and a head fit together and into memory; no weights are read."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longgraft.attention.backends import available
from longgraft.config.settings import HeadOverrides, Pair
from longgraft.engine.pool_size import fitting_rows, requests_that_fit
from longgraft.kernels.cpu import DTYPES, packed_bytes
from longgraft.memories.adjacency import WIDTH
from longgraft.methods.needs import head_path
from longgraft.models.catalogue import Entry
from longgraft.models.files import files_of, not_here
from longgraft.models.gguf_header import check_packages
from longgraft.models.store import ROOM, models_folder
from longgraft.models.targets import usual_cache_dtype
from longgraft.prefill.chunked import chunk_bytes, largest_chunk
from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import free_bytes, resident
from longgraft.target_model.cache_size import cache_bytes_per_token
from longgraft.target_model.model import UNBOUNDED
from longgraft.target_model.positions import most_positions
from longgraft.trees.padded import SIZES
from longgraft.yarn_drafters import files
from longgraft.yarn_drafters.layouts import TargetShape, head_config, norm_notice, our_name, plain_name
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig

PACKAGES = ("longgraft", "torch", "transformers", "datasets", "numpy", "flash-attn")
TIGHT = 0.9  # share of the free memory that may be used: an allocator needs the rest between its blocks
ANSWER = 1024  # tokens of the answers whose requests are counted
GIB = 2**30


@dataclass(frozen=True)
class FitReport:
    """The answer to whether a target and a head fit on this machine."""

    lines: list[str]  # what was looked at, for people
    fits: bool


@dataclass(frozen=True)
class PromptLength:
    """A prompt's length, and the longest that the models allow."""

    tokens: int
    positions: int = UNBOUNDED

    @property
    def fits(self) -> bool:
        return self.tokens <= self.positions

    @property
    def lines(self) -> list[str]:
        """A line for people if the prompt is too long."""
        if self.fits:
            return []
        return [f"context {self.tokens:,}: too long, {self.positions:,} positions are allowed"]


@dataclass(frozen=True)
class Footprint:
    """The memory that a target model or a head takes, in bytes."""

    weights: int  # of the weights
    per_token: int  # of the keys and values of one token


def examine(
    pair: Pair,
    context: int,
    device: torch.device,
    dtype: torch.dtype | None,
    weights: str = "auto",
    cache: torch.dtype | None = None,
) -> FitReport:
    """Checks if a target and a head fit together and into memory.

    Args:
        context: Prompt tokens.
        dtype: Number format of activations; None: the usual one.
        weights: A session's `--weights`.
        cache: A session's `--kv-dtype`.

    Raises:
        ValueError: the target cannot be decoded here, or the head belongs to another target.
    """
    programs = resident() if device.type == "cpu" else 0  # before a GGUF file is described, which leaves memory
    entry = not_here(pair.model)
    if entry is not None:
        check_packages(entry.name)
        return before_download(entry, context, device, programs)
    of_model = files_of(pair.model)
    name = of_model.name
    config = of_model.config
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else config.dtype or torch.bfloat16
    text = config.get_text_config(decoder=True)
    shape = TargetShape.of(config)
    positions = most_positions(config) or UNBOUNDED
    lines = [
        *machine(device),
        f"target {name}: {text.model_type}, {shape.layers} layers, hidden {shape.hidden:,}, vocabulary "
        f"{shape.vocab:,}, {positions:,} positions, {str(dtype)[6:]} on {device}",
    ]
    table = of_model.table
    multiplies_blocks = weights in ("auto", "gguf") and device.type == "cpu" and dtype in DTYPES
    blocks = None
    if table is not None and table.in_blocks and multiplies_blocks:
        blocks = table.packed_bytes
    usual = usual_cache_dtype(config, dtype, blocks is not None or weights == "int8")
    target, packed = _target(config, dtype, weights == "int8", cache or usual or dtype, blocks)
    shares = {"target": target}
    head, described = _head(pair, name, shape)
    lines.append(described)
    layers: tuple[int, ...] = ()
    if head is not None:
        head_settings, own_embedding = head
        shares["drafter"] = _drafter(head_settings, own_embedding, dtype)
        layers = head_settings.feature_layers
        if not head_settings.window:
            positions = min(positions, head_settings.max_positions)
    prompt = PromptLength(context, positions)
    lines += prompt.lines
    wants = Wants(layers=layers, topk=WIDTH)
    rows = min(context, largest_chunk(text, dtype, device, wants))
    fixed = {
        "matrix": (shape.vocab + 1) * WIDTH * 4 + shape.vocab * 8,
        f"a chunk of {rows:,}": chunk_bytes(text, dtype, rows, wants),
    }
    left = free_bytes(device)
    needed, enough = memory(shares, fixed, prompt, left, programs)
    if packed and device.type == "cpu" and dtype in DTYPES and enough:
        copies = "packed int8 weights" if weights == "int8" else "packed weights"
        with_copies, enough_for_copies = memory(shares, fixed | {copies: packed}, prompt, left, programs)
        if enough_for_copies:
            needed = with_copies
        else:
            needed.append("memory: none for packed weights, so torch multiplies, at half the speed")
    if device.type == "cuda" and enough:
        needed.append(served(left, shares, fixed, context))
    return FitReport([*lines, *needed], prompt.fits and enough)


def before_download(entry: Entry, context: int, device: torch.device, programs: int) -> FitReport:
    """Tells if a model of the catalogue that is not on this machine would fit, from what the catalogue says of it.

    Args:
        context: Prompt tokens.
        programs: Bytes of this process's programs, which lie in memory already.
    """
    lines = [
        *machine(device),
        f"model {entry.name}: {entry.title}, {entry.licence}, {entry.positions:,} positions; not on this machine: "
        f"{entry.megabytes:,} MB would be downloaded from {entry.hub or 'the package index'}",
    ]
    if entry.terms:
        lines.append(f"terms of use: {entry.terms}")
    prompt = PromptLength(context, entry.positions)
    lines += prompt.lines
    folder = next(path for path in (models_folder(), *models_folder().parents) if path.exists())
    room = shutil.disk_usage(folder).free
    enough_disk = room >= ROOM * entry.size
    verdict = "fits" if enough_disk else "does not fit"
    lines.append(f"disk: {entry.size / GIB:,.2f} of {room / GIB:,.2f} GiB free: {verdict}")
    if device.type != "cpu":
        return FitReport([*lines, "memory: known for a CPU only, before the download"], prompt.fits and enough_disk)
    target = Footprint(entry.weights, entry.cache)
    needed, enough = memory({"target": target}, {}, prompt, free_bytes(device), programs)
    return FitReport([*lines, *needed], prompt.fits and enough_disk and enough)


def machine(device: torch.device) -> list[str]:
    """Returns lines on versions, devices and backends."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    lines = [f"python {platform.python_version()}, {versions}"]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            left, total = torch.cuda.mem_get_info(index)
            lines.append(
                f"device cuda:{index}: {torch.cuda.get_device_name(index)}, {left / GIB:.1f} of "
                f"{total / GIB:.1f} GiB free"
            )
    else:
        lines.append(
            f"device: CPU, {torch.get_num_threads()} threads, {free_bytes(device) / GIB:.1f} GiB free; no CUDA device"
        )
    return [*lines, *(f"attention {name}: {reason or 'available'}" for name, reason in available().items())]


def memory(
    shares: dict[str, Footprint], fixed: dict[str, int], prompt: PromptLength, left: int, process: int = 0
) -> tuple[list[str], bool]:
    """Computes the most memory that a prompt takes, in words, and if `left` bytes hold it.

    Args:
        shares: The footprints of the target and the head.
        fixed: Name -> bytes that do not grow with the prompt.
        prompt: Its length.
        left: Free bytes.
        process: Bytes of the programs, which lie in a CPU's memory already; a GPU's peak excludes them.
    """
    parts = {}
    context = prompt.tokens
    for owner, share in shares.items():
        parts[f"{owner} weights"] = share.weights
        parts[f"{owner} cache"] = context * share.per_token
    parts.update(fixed)
    total = sum(parts.values())
    shown = ", ".join(f"{name} {size / 2**20:,.1f}" for name, size in parts.items())
    lines = [f"memory for {context:,} tokens: {total / 2**20:,.1f} MiB ({shown})"]
    if process:
        lines.append(
            f"peak of the process: {(total + process) / 2**20:,.1f} MiB, {process / 2**20:,.1f} of them its programs"
        )
    if total <= TIGHT * left:
        return [*lines, f"memory: {total / GIB:,.2f} of {left / GIB:,.2f} GiB free: fits"], True
    if total <= left:
        return [
            *lines,
            f"memory: {total / GIB:,.2f} of {left / GIB:,.2f} GiB free: tight; lower --chunk, or use a smaller dtype",
        ], True
    per_token = sum(share.per_token for share in shares.values())
    most = int((TIGHT * left - (total - context * per_token)) / per_token)
    advice = "not even its weights do"
    if most > 0:
        advice = f"up to {min(most, prompt.positions):,} tokens would"
    return [*lines, f"memory: {total / GIB:,.2f} of {left / GIB:,.2f} GiB free: does not fit; {advice}"], False


def served(left: int, shares: dict[str, Footprint], fixed: dict[str, int], context: int) -> str:
    """Tells how many requests with prompts of this length a server on a GPU decodes at once.

    Args:
        left: Free bytes.
        shares: The footprints of the target and the head.
        fixed: Name -> bytes that do not grow with the prompt.
        context: Prompt tokens.
    """
    free = left - sum(share.weights for share in shares.values()) - sum(fixed.values())
    rows = fitting_rows(free, shares["target"].per_token)
    requests = requests_that_fit(rows, context, ANSWER, SIZES[-1])
    return (
        f"served at once: {requests:,} requests of {context:,} tokens and answers of {ANSWER:,} fit, in a pool of "
        f"{rows:,} rows"
    )


def _target(
    config: Any, dtype: torch.dtype, int8: bool, cache: torch.dtype, blocks: int | None
) -> tuple[Footprint, int]:
    """Returns (what a target keeps, bytes of its packed weights); blocks: bytes of weights in blocks of a GGUF file."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    text = config.get_text_config(decoder=True)
    per_token = cache_bytes_per_token(text, cache)
    if blocks is not None:
        return Footprint(blocks, per_token), 0
    return Footprint(_bytes(model), per_token), packed_bytes(model, int8)


def _head(pair: Pair, name: str, shape: TargetShape) -> tuple[tuple[HeadConfig, bool] | None, str]:
    """Returns ((the head's configuration, True if it has its own embedding), a line for people)."""
    path = head_path(pair.drafter, name)
    if path is None:
        return None, "drafter: none, or none known for this target; decoding by retrieval alone"
    folder = _folder(path)
    if folder is None:
        return None, f"drafter {path}: on the hub and not downloaded yet, so not looked at; fetch it to be sure"
    shapes = {plain_name(key): size for key, size in header(folder).items()}
    config = files.read_config(folder)
    settings = head_config(config, shapes, shape, HeadOverrides())
    own_embedding = any(our_name(key, settings.layout) == "embed_tokens.weight" for key in shapes)
    rope = settings.rope
    line = (
        f"drafter: layout {settings.layout}, hidden {settings.hidden_size:,}, draft vocabulary "
        f"{settings.draft_vocab_size:,} of {settings.vocab_size:,}, features from the inputs of layers "
        f"{settings.feature_layers}, rope {rope.kind} (base {rope.base:,.0f}, factor {rope.factor:g}), "
        f"{settings.max_positions:,} positions: fits"
    )
    notice = norm_notice(config, settings)
    if notice:
        line += f"; {notice}"
    return (settings, own_embedding), line


def _drafter(config: HeadConfig, own_embedding: bool, dtype: torch.dtype) -> Footprint:
    with torch.device("meta"):
        network = Eagle3Network(config, own_embedding).to(dtype)
    return Footprint(_bytes(network), 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize)


def _folder(path: str | Path) -> Path | None:
    """Returns a head's folder; None if it is only on the hub."""
    if Path(path).is_dir():
        return Path(path)
    if str(path).count("/") != 1 or str(path).startswith((".", "/")):
        raise ValueError(
            f"Drafter {path} is not a folder. Give a folder with config.json and the weights, or a hub id (owner/name)."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(path), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def header(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of a folder's tensors; raises ValueError if none can be read."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                    shapes[key] = tuple(tensors.get_slice(key).get_shape())
        if not files:
            weights = torch.load(folder / "pytorch_model.bin", map_location="meta", weights_only=True)
            shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    except (SafetensorError, OSError, RuntimeError, EOFError, AttributeError) as error:
        raise ValueError(
            f"Drafter {folder}: the weights cannot be read ({str(error).splitlines()[0]}). Download them again."
        ) from error
    return shapes


def _bytes(module: torch.nn.Module) -> int:
    parameters = {id(parameter): parameter for parameter in module.parameters()}  # shared ones once
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
