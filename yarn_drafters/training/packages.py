"""Collects training text from packages: wheels and source archives with permissive licences."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import random
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from email import message_from_string
from pathlib import Path, PurePosixPath

from longgraft.files.data_files import checked_object
from longgraft.files.json_lines import read_json_lines
from longgraft.files.new_paths import new_file
from longgraft.files.whole_files import written_whole

TYPES = {".py": "code-python", ".java": "code-java", ".cs": "code-csharp"}
PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Zlib|Unlicense)\b", re.I)
RESTRICTED = re.compile(r"GPL|MPL|Mozilla|EPL|Commercial|Proprietary", re.I)
# Text by which a licence is recognised in archives without metadata.
LICENCE_TEXTS = {
    "Apache-2.0": "Apache License",
    "MIT": "Permission is hereby granted, free of charge",
    "BSD": "Redistribution and use in source and binary forms",
}
VENDORED = re.compile(r"vendor|/_?extern|third_party|/debian/|/gen/")
# Characters: shorter files are boilerplate, longer ones tables and generated code
SHORTEST = 500
LONGEST = 60_000
SHINGLE = 20  # consecutive words by which repeated text is recognised


def licence_of(metadata: str) -> str | None:
    """Returns the permissive licence that a wheel's METADATA states, or None."""
    fields = message_from_string(metadata)
    stated = [fields.get("License-Expression"), *(c for c in fields.get_all("Classifier") or () if "License ::" in c)]
    text = "; ".join(s for s in stated if s) or (fields.get("License") or "")[:80]
    if PERMISSIVE.search(text) and not RESTRICTED.search(text):
        return text
    return None


def is_handwritten(text: str) -> bool:
    """Returns True if this looks like handwritten source: UTF-8, not a data table, not generated, not minified."""
    if (
        not SHORTEST <= len(text) <= LONGEST
        or "\ufffd" in text
        or re.search(r"DO NOT EDIT|[Aa]uto-?generated|@generated", text[:2000])
    ):
        return False
    digits = sum(c.isdigit() for c in text)
    return digits < 0.12 * len(text) and max(map(len, text.splitlines())) < 400


def shingles(text: str, length: int = SHINGLE) -> set[int]:
    """Returns the hashes of all runs of `length` words; they are valid within one process."""
    words = text.split()
    return {hash(" ".join(words[i : i + length])) for i in range(len(words) - length + 1)}


def read_archive(path: Path) -> tuple[str | None, dict[str, str]]:
    """Returns (permissive licence or None, sources by name) of a wheel or source archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            metadata = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
            licence = None
            if metadata:
                licence = licence_of(wheel.read(metadata[0]).decode("utf-8", "replace"))
            return licence, {
                n: wheel.read(n).decode("utf-8", "replace")
                for n in wheel.namelist()
                if PurePosixPath(n).suffix in TYPES and not VENDORED.search(n)
            }
    licence = None
    sources = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            at_top = len(name.parts) <= 2 and re.match(r"(LICEN[SC]E|COPYING)", name.name)
            wanted = name.suffix in TYPES and not VENDORED.search(member.name)
            if not (member.isfile() and (at_top or wanted)):
                continue
            text = archive.extractfile(member).read().decode("utf-8", "replace")  # type: ignore[union-attr]
            if wanted:
                sources[member.name] = text
            else:
                licence = next(
                    (licence_name for licence_name, words in LICENCE_TEXTS.items() if words in text), licence
                )
    return licence, sources


def package_rows(path: Path, most: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yields {text, type, source, license} of an archive's own files in random order, up to about `most` characters."""
    licence, sources = read_archive(path)
    if licence is None:
        print(f"{path.name}: left out, no permissive licence was found", file=sys.stderr)
        return
    package = re.split(r"[-_]\d", path.name)[0]
    names = sorted(sources)
    random.Random(f"{seed} {package}").shuffle(names)
    size = 0
    for name in names:
        text = sources[name].replace("\r\n", "\n")
        if size < most and is_handwritten(text):
            size += len(text)
            yield {
                "text": text,
                "type": TYPES[PurePosixPath(name).suffix],
                "source": f"{package}@{path.name}:{name}",
                "license": licence,
            }


def collect(archives: Iterable[Path], evaluation: Iterable[Path], most: int) -> Iterator[dict[str, str]]:
    """Yields rows of all archives, each text once, without text that repeats evaluation rows.

    A file is dropped if a tenth of its 20-word shingles are in an evaluation row (JSONL with context and
    input).
    """
    shown: set[int] = set()
    for path in evaluation:
        for _, place, row in read_json_lines(path):
            texts = checked_object(row, place)
            if not (texts.get("context") or texts.get("input")):
                raise ValueError(f"{place} has neither context nor input, so nothing of it would be recognised.")
            shown |= shingles(f"{texts.get('context', '')} {texts.get('input', '')}")
    digests: set[str] = set()
    for archive in sorted(archives):
        try:
            rows = list(package_rows(archive, most))
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{archive} is neither a wheel nor a source archive ({error}). Leave it out.") from error
        for row in rows:
            digest = hashlib.sha256(row["text"].encode()).hexdigest()
            shingles_of_file = shingles(row["text"])
            if digest not in digests and len(shingles_of_file & shown) <= 0.1 * len(shingles_of_file):
                digests.add(digest)
                yield row


def main(argv: Sequence[str] | None = None) -> None:
    """Runs `python -m longgraft.yarn_drafters.training.packages ARCHIVES --evaluation F.jsonl ... --out F.jsonl.gz`."""
    parser = argparse.ArgumentParser(
        description="Collect permissively licensed sources from packages, e.g. "
        "of pip download --no-deps --only-binary=:all: NAME ..."
    )
    parser.add_argument("archives", type=Path, nargs="+", help="*.whl, *.tar.gz, *.tar.xz")
    parser.add_argument("--evaluation", type=Path, nargs="*", default=[], help="JSONL rows that must not be repeated")
    parser.add_argument(
        "--most",
        type=int,
        default=900_000,
        help="maximum of characters per package, so that the corpus has many authors",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSONL.gz to write")
    options = parser.parse_args(argv)
    try:
        new_file(options.out)
        _write(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _write(options: argparse.Namespace) -> None:
    packages = set()
    size = 0
    count = 0
    with written_whole(options.out) as part, gzip.open(part, "wt", encoding="utf-8") as out:
        for row in collect(options.archives, options.evaluation, options.most):
            out.write(json.dumps(row) + "\n")
            packages.add(row["source"].split("@")[0])
            size += len(row["text"])
            count += 1
    print(f"{count:,} files of {len(packages)} packages, {size:,} characters: {options.out}")


if __name__ == "__main__":
    main()
