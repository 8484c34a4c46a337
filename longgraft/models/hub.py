"""The Hugging Face hub: a reachability check, reading only the client's cache, and resumable downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def hub_answers() -> bool:
    """Asks the hub once if it can be reached.  Its client would try for 40 seconds and print each attempt."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # errors of the transport, and the client's own error if it is set to work offline
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """Lets the hub's client read only its cache."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def cached_by_client(name: str, revision: str) -> Path | None:
    """Returns the path of OWNER/REPOSITORY/FILE in the cache of the hub's client, or None."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(*_repository_and_file(name), revision=revision)
    if not isinstance(path, str):
        return None
    return Path(path)


def download(name: str, path: Path, size: int | None, sha256: str, revision: str = "main") -> None:
    """Downloads a file of the hub, going on where `path` ends, with the client's progress bar on a terminal.

    As of huggingface_hub 2.4 `hf_hub_download` removes what an interrupted download has written.

    Args:
        name: OWNER/REPOSITORY/FILE.
        path: The file's beginning, from an earlier call that was interrupted; it may be missing.
        size: Bytes of the whole file; None: as many as the hub states.
        sha256: SHA-256 of the whole file. The hub states it for large files; the caller checks the bytes.
        revision: Revision of the repository.

    Raises:
        ValueError: The hub has a file of another size or SHA-256.
        Exception: The hub does not give the file (errors of several libraries). `path` keeps what has come.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(*_repository_and_file(name), revision=revision)
    file_of_hub = get_hf_file_metadata(url)
    stated = file_of_hub.etag
    if not stated or len(stated) != len(sha256):  # it states another hash, or none
        stated = sha256
    if size is None:
        size = file_of_hub.size or 0
    if (file_of_hub.size, stated) != (size, sha256):
        raise ValueError(
            f"it has another file: {file_of_hub.size:,} bytes with SHA-256 {stated[:12]}..., "
            f"and {size:,} with {sha256[:12]}... are needed"
        )
    with open(path, "ab") as file:
        http_get(
            url,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers(),
            expected_size=size,
            displayed_filename=name.rpartition("/")[2],
        )


def _repository_and_file(name: str) -> tuple[str, str]:
    owner, repository, file = name.split("/", 2)
    return f"{owner}/{repository}", file
