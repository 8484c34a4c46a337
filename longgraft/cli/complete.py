"""`longgraft complete`: completes code at a cursor in a repository."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from longgraft.cli.commands import command
from longgraft.cli.opening import open_session, say_loading
from longgraft.cli.prompts import STDIN, read_source
from longgraft.completion.options import NEXT_EDIT, CompletionOptions
from longgraft.config.answer_settings import SamplingSettings
from longgraft.config.options import Checked, option
from longgraft.config.settings import Pair, Settings

if TYPE_CHECKING:
    from longgraft.completion.completer import Completion
    from longgraft.completion.snippets import Change, Cursor, Snippet

completing = typer.Typer()

EXAMPLE = "longgraft complete --repo . --file src/cache.py --line 42 --explain"
UNENDED = "\\ No newline at end of file"  # a line of a diff, after a line without an end
SHOWN = 8  # most files that are named among those left out


@dataclass(frozen=True)
class CursorOptions(Checked):
    """The cursor."""

    repo: str | None = option(None, "Folder of the repository", metavar="DIR", none="the current folder")
    file: str = option("", "The file, which must be given: a path from the repository, from here, or absolute")
    line: Annotated[int, Ge(1)] | None = option(None, "The cursor's line; 1 is the first")
    column: Annotated[int, Ge(1)] | None = option(
        None, "The cursor's column; 1 is before the first character", none="the line's end"
    )
    text: str | None = option(
        None,
        "The file's text if it is not saved: a file, or - for standard input",
        metavar="FILE",
        none="what is on disk",
    )
    changes: str | None = option(
        None,
        "Recent changes, the last one last, for --layout next-edit: a file "
        "with a unified diff, or - for standard input",
        metavar="FILE",
        none="no changes",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file or self.line is None:
            raise ValueError("Say where the cursor is: --file FILE --line N, and --column N within the line.")
        if self.text == self.changes == STDIN:
            raise ValueError("--text and --changes both read standard input. Give one of them as a file.")

    @property
    def root(self) -> Path:
        return Path(self.repo or ".")

    def cursor(self) -> Cursor:
        """Returns the cursor in the file; raises ValueError if there is no such place."""
        from longgraft.completion.changes import changes_of, from_root
        from longgraft.completion.cursor import locate

        assert self.line is not None
        # The file's byte order mark is kept, so that an edit fits the file.
        text = None if self.text is None else read_source(self.text, encoding="utf-8")
        changes: tuple[Change, ...] = ()
        if self.changes is not None:
            # A diff has files of several encodings; only the texts of those in UTF-8 can be right.
            changes = from_root(self.root, changes_of(read_source(self.changes, "replace")))
        return replace(locate(self.root, self.file, self.line, self.column, text), changes=changes)


@dataclass(frozen=True)
class CompletionOutput(Checked):
    """Options for the output of a completion."""

    explain: bool = option(
        False, "List the snippets that the model read and why, in the prompt's order, and what was left out"
    )
    stream: bool = option(False, "Print text as it comes")
    as_json: bool = option(False, "One object on stdout, nothing else", flag="--json")
    prompt: bool = option(False, "Print the prompt, and stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_json and (self.stream or self.prompt):
            raise ValueError("--json goes with neither --stream nor --prompt. Leave it out.")


@command(completing, "complete", EXAMPLE, "Answer")
def complete(
    place: CursorOptions,
    options: CompletionOptions,
    output: CompletionOutput,
    pair: Pair,
    settings: Settings,
    draw: SamplingSettings,
) -> None:
    """Complete code at a cursor, with the repository around it."""
    cursor = place.cursor()  # before the imports, which take seconds
    if place.changes is not None and options.layout != NEXT_EDIT:
        raise ValueError(
            "--changes was given, and only --layout next-edit reads changes. Add it, or leave --changes out."
        )
    if not output.as_json:
        say_loading(pair, "complete -m")
    from longgraft.acceptance.sampling_defaults import SamplingDefaults
    from longgraft.completion.completer import Completer

    SamplingDefaults().sampling(vars(draw))  # checked before a model is loaded
    session, _ = open_session(pair, settings, tell=not output.as_json)
    if output.prompt:
        prompt = Completer(session).lay_out(place.root, cursor, options)[0]
        print(session.tokenizer.decode(prompt.ids))
        return
    streams = output.stream and options.layout != NEXT_EDIT  # an edit is a diff, which is known at its end

    def tell(text: str) -> None:
        if streams:
            print(text, end="", flush=True)

    completion = Completer(session).complete(place.root, cursor, options, session.sampling(**vars(draw)), tell)
    if output.as_json:
        print(json.dumps(described(completion, session.target.name)))
        return
    print("" if streams else shown(completion))
    if output.explain:
        print("\n".join(explained(completion)), file=sys.stderr)
    print("\n".join(summed_up(completion)), file=sys.stderr)


def shown(completion: Completion) -> str:
    """Returns the completion's text; a next edit is a unified diff, which `patch -p1` and `git apply` read."""
    edit = completion.edit
    if edit is None:
        return completion.text
    cursor = completion.cursor
    before = list(StringIO(cursor.bom + cursor.text))  # git's lines end at \n only
    after = list(StringIO(cursor.bom + edit.applied(cursor.text)))
    # A tab ends a name with blanks, which `patch` would cut off there.
    mark = "\t" if " " in edit.path else ""
    lines = []
    for line in unified_diff(before, after, f"a/{edit.path}{mark}", f"b/{edit.path}{mark}"):
        lines.append(line if line.endswith("\n") else f"{line}\n{UNENDED}\n")
    return "".join(lines).removesuffix("\n")


def described(completion: Completion, model: str) -> dict[str, Any]:
    """Returns the completion for JSON."""
    prompt = completion.prompt
    used = [
        _described(snippet) | {"tokens": tokens} for snippet, tokens in zip(prompt.used, prompt.tokens, strict=True)
    ]
    return {
        "text": completion.text,
        "edit": None if completion.edit is None else asdict(completion.edit),
        "ended": completion.ended,
        "loops": completion.loops,
        "model": model,
        "path": completion.cursor.path,
        "layout": prompt.form,
        "prompt_tokens": len(prompt.ids),
        "reused_tokens": completion.reused,
        "file_tokens": {"before": prompt.before, "after": prompt.after},
        "used": used,
        "unused": [_described(snippet) for snippet in prompt.unused],
        "left_out": asdict(completion.gathered.left_out),
        "seconds": dict(completion.seconds),
        "token_ids": completion.generation.token_ids,
        "stats": completion.generation.stats.as_dict(),
    }


def _described(snippet: Snippet) -> dict[str, Any]:
    return {
        "path": snippet.path,
        "lines": [snippet.first_line, snippet.last_line],
        "why": snippet.why,
        "worth": snippet.worth,
    }


def explained(completion: Completion) -> list[str]:
    """Returns lines with the prompt's parts in their order, then what was left out and why."""
    prompt = completion.prompt
    left_out = completion.gathered.left_out
    rows = [
        (f"{tokens:,}", _where(snippet), snippet.why)
        for snippet, tokens in zip(prompt.used, prompt.tokens, strict=True)
    ]
    read = "the file, before the cursor"
    if prompt.form == NEXT_EDIT:
        read = "recent changes and the lines around the cursor"
    rows.append((f"{prompt.before:,}", completion.cursor.path, read))
    if prompt.form == "fim":
        rows.append((f"{prompt.after:,}", completion.cursor.path, "the file, after the cursor"))
    unused = [("", _where(snippet), snippet.why) for snippet in prompt.unused[:SHOWN]]
    lines = [
        "",
        f"the prompt, {prompt.form}, nearest to the cursor last:",
        *_table([("tokens", "snippet", "why"), *rows]),
    ]
    if unused:
        lines += ["", f"no room for {len(prompt.unused):,}, the best of them:", *_table(unused)]
    if left_out.counts:
        counts = ", ".join(f"{count:,} {why}" for why, count in left_out.counts.items())
        lines += ["", f"not read: {counts}"]
    if left_out.secrets:
        secrets = ", ".join(left_out.secrets[:SHOWN])
        if len(left_out.secrets) > SHOWN:
            secrets += f" and {len(left_out.secrets) - SHOWN:,} more"
        lines.append(f"taken to hold secrets, not read: {secrets}")
    return lines


def summed_up(completion: Completion) -> list[str]:
    """Returns lines on what was read, what was reused, and how fast it went."""
    prompt = completion.prompt
    stats = completion.generation.stats
    seconds = completion.seconds
    files = len({snippet.path for snippet in prompt.used})
    snippets = f"{_number(len(prompt.used), 'snippet')} of {_number(files, 'other file')}"
    ended = f"{completion.ended}, repeats itself" if completion.loops else completion.ended
    lines = []
    if prompt.form == NEXT_EDIT and completion.edit is None:
        lines.append(f"no edit: {no_edit(completion)}")
    return [
        *lines,
        "",
        f"prompt: {len(prompt.ids):,} tokens ({prompt.form}), {prompt.before + prompt.after:,} of them "
        f"of {completion.cursor.path}, {sum(prompt.tokens):,} in {snippets}",
        f"read {len(prompt.ids) - completion.reused:,} tokens in {stats.prefill_seconds:.2f} s, reused "
        f"{completion.reused:,}; first token after {seconds['first']:.2f} s, with "
        f"{seconds['gather'] + seconds['layout']:.2f} s to gather and lay out",
        f"decoded {stats.new_tokens} tokens ({ended}) in {stats.decode_seconds:.2f} s "
        f"({stats.decode_tokens_per_second:.1f} tokens/s, {stats.steps} steps, "
        f"{stats.tokens_per_step:.2f} tokens per step)",
    ]


def no_edit(completion: Completion) -> str:
    """Returns why a next edit has no edit."""
    if completion.ended == "length":
        return "the rewritten lines reached their limit of tokens; --max-new-tokens sets it"
    if completion.ended == "stop":
        return "a stop string cut the rewritten lines off, or the model would change nothing"
    return "the model would change nothing"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _where(snippet: Snippet) -> str:
    return f"{snippet.path}:{snippet.first_line}-{snippet.last_line}"


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Aligns numbers to the right and names to the left."""
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{row[0]:>{first + 2}}  {row[1]:<{second}}  {row[2]}".rstrip() for row in rows]
