"""`longgraft corpus`: texts that answers may repeat, kept by name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longgraft.yarn_drafters.training.documents import Document

SHOWN = 8  # most files that are named among those left out


@dataclass
class LeftOut:
    """The files that are not added."""

    excluded: int = 0
    unread: list[str] = field(default_factory=list)  # a sentence for each file that is no text

    @property
    def lines(self) -> list[str]:
        """Lines for people; none if nothing was left out."""
        lines = []
        if self.excluded:
            lines.append(f"left out by --exclude: {self.excluded:,}")
        if self.unread:
            lines += [f"left out because they are no text: {len(self.unread):,}", *self.unread[:SHOWN]]
        if len(self.unread) > SHOWN:
            lines.append(f"and {len(self.unread) - SHOWN:,} more")
        return lines


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
        typer.Argument(
            help="JSONL(.gz) with text, messages or conversations, any text file, or a folder of them; hidden files "
            "of a folder, and those that are no text, are left out."
        ),
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
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out files whose name, or path from the given folder, is like this, such as '*.csv' or "
            "'tests/*'; repeatable.",
        ),
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

    path = corpus_path(name)
    target = files_of(model)
    identity = {"tokenizer": vocabulary(target.tokenizer), MODEL: target.name}
    left_out = LeftOut()
    chosen = _chosen(files, tuple(filter(None, (endings or "").split(","))), exclude or (), left_out)
    documents = _documents(chosen, left_out)
    chats = ChatEncoder(target.tokenizer)
    tokens, _ = split_coded(encode(tqdm(documents, "encoding", unit=" documents", disable=None), chats).tokens)
    # Some tokenizers have added tokens that their model never predicts.
    tokens = tokens[tokens < target.config.get_text_config(decoder=True).vocab_size]
    if not len(tokens):
        which = " with these endings" if endings else ""
        advice = chats.left_out or "Give other files."
        raise ValueError("\n".join((f"{', '.join(map(str, files))}: no text to add{which}. {advice}", *left_out.lines)))
    with changing(path):
        earlier = [Corpus.load(path, identity).tokens] if path.exists() else []
        whole = np.concatenate([*earlier, tokens])[-(most or 0) :]
        built = Corpus.build(whole, lambda rounds: tqdm(rounds, "sorting", unit=" rounds", disable=None))
        built.save(path, identity)
    print(f"{name}: {len(tokens):,} tokens were added, {len(whole):,} are kept in {path}")
    for line in left_out.lines:
        print(line, file=sys.stderr)


@corpus.command("remove", epilog="Example: longgraft corpus remove ours")
def remove(name: Name) -> None:
    """Remove a corpus."""
    from longgraft.corpora import changing, existing_corpus

    path = existing_corpus(name)
    with changing(path):
        path.unlink()
    print(f"removed {path}")


def _chosen(
    files: Sequence[Path], endings: tuple[str, ...], exclude: Sequence[str], left_out: LeftOut
) -> Iterator[tuple[Path, bool]]:
    """Yields (file, True if it was given by itself); from folders files that are not hidden, with these endings."""
    for given in files:
        found = [given]
        if given.is_dir():
            found = sorted(path for path in given.rglob("*") if path.is_file() and path.name.endswith(endings or ""))
        for path in found:
            within = path.relative_to(given)
            if any(part.startswith(".") for part in within.parts):
                continue
            if any(fnmatch(path.name, like) or fnmatch(within.as_posix(), like) for like in exclude):
                left_out.excluded += 1
            else:
                yield path, path == given


def _documents(chosen: Iterable[tuple[Path, bool]], left_out: LeftOut) -> Iterator[Document]:
    """Yields the documents of files, but for a folder's files that are no text."""
    from longgraft.yarn_drafters.training.documents import read_documents

    for path, given in chosen:
        if given:
            yield from read_documents([path])
            continue
        try:
            found = list(read_documents([path]))
        except ValueError as error:
            left_out.unread.append(str(error))
            continue
        if found and all("\0" in document.text for document in found):
            left_out.unread.append(f"{path} is binary.")
        else:
            yield from found
