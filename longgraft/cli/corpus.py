"""`longgraft corpus`: texts that answers may repeat, kept by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

corpus = typer.Typer(
    invoke_without_command=True, help="List the texts that answers may repeat, kept by name; add files, remove one."
)
Name = Annotated[str, typer.Argument(help="Name of the corpus, for --corpus NAME and --with datastore=NAME.")]


@corpus.callback(epilog="Example: longgraft corpus; then longgraft generate --corpus NAME ...")
def list_corpora(context: typer.Context) -> None:
    """List the texts that answers may repeat, kept by name; add files, remove one."""
    from longgraft.corpora import corpora_folder, corpus_path, known_corpora, tokens_in

    if context.invoked_subcommand is not None:
        return
    names = known_corpora()
    if not names:
        print(f"no corpus in {corpora_folder()}; `longgraft corpus add NAME FILES --model MODEL` makes one")
    for name in names:
        path = corpus_path(name)
        tokens = tokens_in(path)
        shown = "damaged" if tokens is None else f"{tokens:,} tokens"
        print(f"{name:<32} {shown:>21} {path.stat().st_size / 1e6:>9,.1f} MB")


@corpus.command("add", epilog="Example: longgraft corpus add ours src docs --endings .py,.md --model smollm2")
def add(
    name: Name,
    files: Annotated[
        list[Path],
        typer.Argument(help="JSONL(.gz) with text, messages or conversations, any text file, or a folder of them."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Model with the tokenizer: a name of `longgraft models`, folder, GGUF file or hub id; default: "
            "the embedded."
        ),
    ] = None,
    endings: Annotated[
        str | None, typer.Option(metavar=".A,.B", help="In folders, take only files with these endings.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Keep at most this many tokens, the newest; default: all.")
    ] = None,
) -> None:
    """Add files to the end of a corpus. Running requests keep the old corpus; later ones read the new one."""
    import numpy as np
    from tqdm import tqdm

    from longgraft.corpora import Corpus, changing, corpus_path
    from longgraft.files.identified_file import MODEL
    from longgraft.models.files import files_of
    from longgraft.runtime.fingerprint import vocabulary
    from longgraft.yarn_drafters.training.chats import ChatEncoder
    from longgraft.yarn_drafters.training.corpus import encode, split_coded
    from longgraft.yarn_drafters.training.documents import read_documents

    path = corpus_path(name)
    target = files_of(model)
    identity = {"tokenizer": vocabulary(target.tokenizer), MODEL: target.name}
    chosen = _chosen(files, tuple(filter(None, (endings or "").split(","))))
    documents = read_documents(chosen)
    chats = ChatEncoder(target.tokenizer)
    tokens, _ = split_coded(encode(tqdm(documents, "encoding", unit=" documents", disable=None), chats).tokens)
    # Some tokenizers have added tokens that their model never predicts.
    tokens = tokens[tokens < target.config.get_text_config(decoder=True).vocab_size]
    if not len(tokens):
        which = " with these endings" if endings else ""
        advice = chats.left_out or "Give other files."
        raise ValueError(f"{', '.join(map(str, files))}: no text to add{which}. {advice}")
    with changing(path):
        earlier = [Corpus.load(path, identity).tokens] if path.exists() else []
        whole = np.concatenate([*earlier, tokens])[-(most or 0) :]
        built = Corpus.build(whole, lambda rounds: tqdm(rounds, "sorting", unit=" rounds", disable=None))
        built.save(path, identity)
    print(f"{name}: {len(tokens):,} tokens were added, {len(whole):,} are kept in {path}")


@corpus.command("remove", epilog="Example: longgraft corpus remove ours")
def remove(name: Name) -> None:
    """Remove a corpus."""
    from longgraft.corpora import changing, existing_corpus

    path = existing_corpus(name)
    with changing(path):
        path.unlink()
    print(f"removed {path}")


def _chosen(files: list[Path], endings: tuple[str, ...]) -> Iterator[Path]:
    """Yields files as given; from folders all files, or those with these endings."""
    for path in files:
        if path.is_dir() and endings:
            yield from sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(endings))
        else:
            yield path
