"""`longgraft datastore build`: the files that a datastore is made of.  Knows options and printing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional

import typer

from longgraft.config.new_paths import new_file

datastore = typer.Typer(no_args_is_help=True, help="Build a datastore: text to look tokens up in.")


@datastore.callback()
def group() -> None:
    """Build a datastore: text to look tokens up in."""


@datastore.command("build", epilog="Example: longgraft datastore build src docs --endings .py,.md --out "
                                   "store.safetensors")
def build(
    files: Annotated[list[Path], typer.Argument(
        help="JSONL(.gz) with text, messages or conversations, any text file, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="New file.")],
    model: Annotated[Optional[str], typer.Option(       # noqa: UP045
        help="Model with the tokenizer: a name of `longgraft models`, folder, GGUF file or hub id; default: the "
             "embedded.")] = None,
    endings: Annotated[Optional[str], typer.Option(     # noqa: UP045
        metavar=".A,.B", help="Of folders, only files with these endings.")] = None,
) -> None:
    """Encode files, sort their places, write one file for `--with datastore=FILE`."""
    new_file(out)
    from tqdm import tqdm

    from longgraft.models.places import place_of
    from longgraft.retrievers.datastore import Datastore
    from longgraft.runtime.fingerprint import vocabulary
    from longgraft.target_model.weights import read_tokenizer
    from longgraft.yarn_drafters.training.corpus import encode, split_coded
    from longgraft.yarn_drafters.training.documents import read_documents

    place = place_of(model)
    tokenizer = read_tokenizer(place.path, place.name)
    documents = read_documents(_chosen(files, tuple(filter(None, (endings or "").split(",")))))
    tokens, _ = split_coded(encode(tqdm(documents, "encoding", unit=" documents"), tokenizer).tokens)
    store = Datastore.build(tokens, lambda rounds: tqdm(rounds, "sorting", unit=" rounds"))
    store.save(out, {"tokenizer": vocabulary(tokenizer)})
    print(f"{out}: {len(store.tokens):,} tokens")


def _chosen(files: list[Path], endings: tuple[str, ...]) -> Iterator[Path]:
    """Files as given; of folders all files, or those with these endings."""
    for path in files:
        if path.is_dir() and endings:
            yield from sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(endings))
        else:
            yield path
