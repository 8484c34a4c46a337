"""The commands that make drafters: `longgraft train ...` and `longgraft heads ...`."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from longgraft.config.options import size
from longgraft.files.data_files import read_table
from longgraft.files.new_paths import new_folder

MOST = 10**15  # tokens: more than exist
EMBEDDED = "embedded"

train = typer.Typer(
    no_args_is_help=True,
    help="Train a drafter, extend one to long prompts, or train a small target. The same command again resumes; "
    "several GPUs: torchrun --no-python.",
)
heads = typer.Typer(invoke_without_command=True, help="List the EAGLE-3 heads that ship or are known; export one.")

Data = Annotated[
    list[Path],
    typer.Option(
        help="JSONL(.gz) with text, messages or conversations, any text file, or a folder of them; repeatable.",
        metavar="PATH",
    ),
]
Valid = Annotated[
    list[Path] | None, typer.Option(help="Validation text that is not in --data; repeatable.", metavar="PATH")
]
Out = Annotated[Path, typer.Option(help="Folder of the run: checkpoints, log.jsonl, the result.", metavar="FOLDER")]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML or JSON of further settings, or a shipped one, such as embedded_drafter; default: the usual ones.",
        metavar="FILE",
    ),
]
Tokens = Annotated[
    str | None, typer.Option(help="Training tokens, e.g. 100m; default: the recipe's.", metavar="TOKENS")
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...; default: a GPU if there is one.", metavar="TEXT")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Number type of the frozen target; one of float32, bfloat16, float16; default: bfloat16 on a GPU, else "
        "float32.",
        metavar="TEXT",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Peak learning rate of AdamW; Muon takes ten times that; default: the recipe's.", metavar="NUMBER"
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Time after which the result is written, loading included; the schedule follows this clock; default: no "
        "limit.",
        metavar="MINUTES",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="The target: a name of `longgraft models`, folder, GGUF file or hub id; default: the embedded model.",
        metavar="TEXT",
    ),
]


@train.command(
    "target", epilog="Example: longgraft train target --data corpus.jsonl.gz --out run --recipe embedded_target"
)
def train_target(
    data: Data,
    out: Out,
    valid: Valid = None,
    recipe: RecipeFile = None,
    tokens: Tokens = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="The tokenizer of this model, named like --teacher; default: the teacher's, or one learnt.",
            metavar="TEXT",
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="A model to learn the distributions of: embedded, a name of `longgraft models`, folder, GGUF "
            "file or hub id; default: none.",
            metavar="TEXT",
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Train a small Qwen3 model on text: a target, or a small model that drafts for a larger one (--teacher)."""
    from longgraft.yarn_drafters.training.target import TargetRecipe
    from longgraft.yarn_drafters.training.target import train_target as run

    loaded = TargetRecipe.load(recipe, total_tokens=_number(tokens), device=device)
    print(run(loaded, _existing(data), _existing(valid), out, tokenizer, teacher))


def _distilling(name: str, module: str, trainer: str, help: str, example: str = "chats.jsonl") -> None:
    """Makes the command `train NAME` of a trainer, whose module is imported when it runs."""

    def command(
        data: Data,
        out: Out,
        model: Model = None,
        valid: Valid = None,
        recipe: RecipeFile = None,
        tokens: Tokens = None,
        minutes: Minutes = None,
        learning_rate: Rate = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        until = _until(minutes)
        kind = getattr(import_module(module), trainer)
        loaded = kind.recipes.load(recipe, total_tokens=_number(tokens), device=device, **_rates(learning_rate))
        print(
            kind.train(loaded, model or EMBEDDED, _existing(data), _existing(valid), out, _dtype(dtype, device), until)
        )

    train.command(
        name, help=help, epilog=f"Example: longgraft train {name} --model Qwen/Qwen3-8B --data {example} --out run"
    )(command)


_distilling(
    "drafter",
    "longgraft.yarn_drafters.training.drafter",
    "DrafterTrainer",
    "Train an EAGLE-3 drafter for any supported target, by training-time test.",
)
_distilling("medusa", "longgraft.zoo.medusa.training", "MedusaTrainer", "Train Medusa heads for any supported target.")
_distilling(
    "dflash", "longgraft.zoo.dflash.training", "BlockTrainer", "Train a DFlash block drafter for any supported target."
)
_distilling(
    "longspec",
    "longgraft.zoo.longspec.training",
    "LongSpecTrainer",
    "Train a LongSpec drafter, which reads the target's own keys and values.",
    "books.jsonl",
)


@train.command(
    "extend",
    epilog="Example: longgraft train extend --model Qwen/Qwen3-8B --drafter run/head "
    "--to 64k --data books.jsonl --out longer",
)
def train_extend(
    drafter: Annotated[Path, typer.Option(help="Head to extend.", metavar="FOLDER")],
    data: Data,
    out: Out,
    to: Annotated[str, typer.Option(help="Positions that the new head is for, e.g. 64k.", metavar="TOKENS")] = "64k",
    model: Model = None,
    original: Annotated[
        str | None,
        typer.Option(help="Length the head was trained at; default: what its config says.", metavar="TOKENS"),
    ] = None,
    valid: Valid = None,
    recipe: RecipeFile = None,
    tokens: Tokens = None,
    minutes: Minutes = None,
    learning_rate: Rate = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Extend a drafter by YaRN: new frequencies, then a short training on long texts."""
    from longgraft.models.files import files_of
    from longgraft.target_model.positions import most_positions
    from longgraft.yarn_drafters.layouts import TargetShape
    from longgraft.yarn_drafters.training.drafter import DrafterTrainer, extension_recipe

    until = _until(minutes)
    kind = _dtype(dtype, device)
    length = _number(to)
    assert length is not None
    target = files_of(model)
    config = target.config
    shape = TargetShape.of(config)
    longest = most_positions(config)
    extension = extension_recipe(
        drafter,
        shape,
        length,
        _number(original),
        recipe,
        longest,
        total_tokens=_number(tokens),
        device=device,
        **_rates(learning_rate),
    )
    print(DrafterTrainer.train(extension, target.name, _existing(data), _existing(valid), out, kind, until))


@train.command(
    "regenerate",
    epilog="Example: longgraft train regenerate --model smollm2 --magpie "
    "--documents texts/ --tokens 4m --out chats.jsonl",
)
def train_regenerate(
    out: Annotated[Path, typer.Option(help="JSONL to write; the same command again continues it.", metavar="FILE")],
    model: Model = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="Chats or texts whose user turns are answered; repeatable.", metavar="PATH"),
    ] = None,
    magpie: Annotated[bool, typer.Option("--magpie", help="The model invents requests (arXiv 2406.08464).")] = False,
    documents: Annotated[
        list[Path] | None,
        typer.Option(help="Texts to summarise, quote, rewrite, explain, edit; repeatable.", metavar="PATH"),
    ] = None,
    continued: Annotated[
        list[Path] | None,
        typer.Option(
            "--continue",
            help="Texts of which the model continues excerpts, without a chat; repeatable.",
            metavar="PATH",
        ),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL rows of evaluation sets: requests that share eight words in a row are dropped; repeatable.",
            metavar="PATH",
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(help="Answer tokens, e.g. 4m.", metavar="TOKENS")] = "1m",
    batch: Annotated[int, typer.Option(min=1, help="Answers sampled at once.", metavar="NUMBER")] = 64,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of a turn; longer ones are cut.", metavar="TOKENS")
    ] = 512,
    temperatures: Annotated[str, typer.Option(help="One is drawn for each chat.", metavar="A,B,...")] = "0,0.7,1",
    excerpt: Annotated[
        int, typer.Option(min=400, help="Longest excerpt of --documents and --continue.", metavar="CHARACTERS")
    ] = 6000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling.", metavar="NUMBER")] = 0,
    device: Device = None,
    dtype: Annotated[
        str, typer.Option(help="Number type of the model; one of float32, bfloat16, float16.", metavar="TEXT")
    ] = "bfloat16",
) -> None:
    """Sample a model's own answers and continuations, to train a head on."""
    from longgraft.config.method_roles import PLAIN
    from longgraft.loading import load
    from longgraft.yarn_drafters.training.regenerate import regenerate
    from longgraft.yarn_drafters.training.sampled_chats import ChatSampling, PromptSources

    sampling = ChatSampling(
        _number(tokens) or 1, batch, max_new_tokens, _temperatures(temperatures), seed=seed, longest=excerpt
    )
    sources = PromptSources.read(_existing(prompts), _existing(documents), _existing(continued), magpie)
    excluded = _existing(exclude)
    # Among many requests in a pass, drafts pay as little as they cost.
    session = load(model, None, tell=False, method=PLAIN, dtype=dtype, device=device)
    counts = regenerate(session, out, sampling, sources, excluded)
    print(f"{out}: {counts['kept']:,} rows with {counts['tokens']:,} answer tokens")
    for reason, chats in sorted(counts.items()):
        if reason not in ("kept", "tokens"):
            print(f"  dropped, {reason}: {chats:,}")


@heads.callback(epilog="Example: longgraft heads")
def list_heads(context: typer.Context) -> None:
    """List the EAGLE-3 heads that ship, those that are known, and their targets."""
    from longgraft.models.catalogue import catalogue, shipped, shipped_head
    from longgraft.yarn_drafters.known_heads import KNOWN_HEADS

    if context.invoked_subcommand is not None:
        return
    places = {EMBEDDED: shipped("embedded/drafter")} | {name: shipped_head(name) for name in catalogue()}
    rows = [("target", "head", "length in tokens")]
    for name, folder in places.items():
        if folder is not None:
            length = read_table(folder / "config.json", {"max_position_embeddings": int})["max_position_embeddings"]
            rows.append((name, f"ships; --drafter {'auto' if name == EMBEDDED else name}", f"{length:,}"))
    rows.extend((head.target, head.head, f"{head.trained_length:,}") for head in KNOWN_HEADS)
    for target, head, length in rows:
        print(f"{target:<44} {head:<48} {length:>16}")


@heads.command(
    "export",
    epilog="Example: longgraft heads export run/head --model Qwen/Qwen3-8B --out vllm-head --layout speculators; then "
    "longgraft heads export smollm2 --out smollm2-head --layout eagle3",
)
def export(
    drafter: Annotated[
        str, typer.Argument(help="The head, as --drafter takes it: hub id, folder, auto or a model's name.")
    ],
    out: Annotated[Path, typer.Option(help="New folder.", metavar="FOLDER")],
    model: Model = None,
    layout: Annotated[
        str, typer.Option(help="speculators (vLLM), eagle3 (EAGLE, SGLang) or bytes (eagle3 in half the space).")
    ] = "speculators",
) -> None:
    """Write a head in another public layout."""
    from longgraft.methods.needs import head_path
    from longgraft.models.catalogue import shipped_head
    from longgraft.models.files import files_of
    from longgraft.target_model.positions import most_positions
    from longgraft.yarn_drafters.checkpoint import load_head, save_head, save_in_bytes, save_speculators
    from longgraft.yarn_drafters.layouts import TargetShape

    savers: dict[str, Any] = {"speculators": save_speculators, "eagle3": save_head, "bytes": save_in_bytes}
    if layout not in savers:
        raise ValueError(f"Layout {layout!r} is unknown. Known: {', '.join(savers)}.")
    new_folder(out)
    if model is None and shipped_head(drafter) is not None:
        model = drafter  # the head's own target
    target = files_of(model)
    path = head_path(drafter, target.name)
    if path is None:
        raise ValueError(
            f"No head of {target.name} is known. Give its folder or hub id; `longgraft heads` lists those known."
        )
    config = target.config
    network = load_head(path, TargetShape.of(config), dtype=None)
    if layout == "speculators":
        save_speculators(
            network,
            out,
            verifier=target.name,
            architectures=config.architectures or [],
            positions=most_positions(config) or 0,
        )
    else:
        savers[layout](network, out)
    print(out)


def _existing(paths: list[Path] | None) -> list[Path]:
    """Returns the paths, [] for None; raises ValueError for one that does not exist."""
    for path in paths or ():
        if not path.exists():
            raise ValueError(f"File {path} does not exist. Give a JSONL or text file, or a folder.")
    return paths or []


def _number(text: str | None) -> int | None:
    """Returns the number of a text: 64k is 65,536; 100m is 100 million."""
    if text is None:
        return None
    number = size(text)
    if not 1 <= number <= MOST:
        raise ValueError(f"{text!r} is no number from 1 to {MOST:,}, such as 65536, 64k or 100m.")
    return number


def _until(minutes: float | None) -> float | None:
    """Returns the time, as in `time.monotonic`, at which so many minutes have passed."""
    if minutes is None:
        return None
    return time.monotonic() + 60 * minutes


def _rates(rate: float | None) -> dict[str, Any]:
    if rate is None:
        return {}
    if not 0 < rate <= 1:
        raise ValueError(f"--learning-rate is {rate}; a number above 0, at most 1 is needed, such as 1e-4.")
    return {"adam_lr": rate, "muon_lr": 10 * rate}


def _dtype(name: str | None, device: str | None) -> Any:
    from longgraft.runtime.devices import device_of, dtype_of

    if name:
        return dtype_of(name)
    return dtype_of("bfloat16" if device_of(device).type == "cuda" else "float32")


def _temperatures(text: str) -> tuple[float, ...]:
    """Returns the temperatures of a text."""
    try:
        temperatures = tuple(float(part) for part in text.split(","))
    except ValueError:
        temperatures = (-1.0,)
    if not all(0 <= temperature <= 10 for temperature in temperatures):
        raise ValueError(f"--temperatures is {text!r}; numbers from 0 to 10 with commas are needed, such as 0,0.7,1.")
    return temperatures
