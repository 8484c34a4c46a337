"""Files that hold secrets, recognized by name and content; they are never read into a prompt.

A secret that no pattern here matches is not found, so what must not be seen belongs outside the repository.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from posixpath import splitext

FILE = Path(__file__).with_name("secret_forms.toml")
# Patterns of file names, in lower case.
NAMES = tuple(
    name
    for names in (
        ".env* *.env *.pem *.key *.p12 *.pfx *.p8 *.jks *.keystore *.ppk *.gpg *.kdbx *.kdb *.ovpn",
        "*.tfvars *.tfvars.json *.tfstate* *_rsa *_dsa *_ecdsa *_ed25519 id_rsa* id_dsa* id_ecdsa* id_ed25519*",
        "credentials* .credentials* client_secret* .netrc _netrc .npmrc .yarnrc* .pypirc .htpasswd .pgpass .my.cnf",
        ".git-credentials .dockercfg .dockerconfigjson .boto .s3cfg local.settings.json wp-config.php",
        "*service-account*.json *service_account*.json *serviceaccount*.json *[-_]credentials.json",
        "kubeconfig* *.kubeconfig *_history .histfile *host_history.txt .vault-token .databrickscfg .terraformrc",
        "pgpass.conf .mylogin.cnf rclone.conf *.keytab",
    )
    for name in names.split()
)
FOLDERS = (".env*", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store")
# Files with these stems hold secrets if they are settings (secrets.yaml), but not if they are code (secrets.py).
SETTINGS = ".json .yaml .yml .toml .ini .cfg .conf .txt .xml .properties .enc .csv"  # or no suffix at all
STEMS = ("secret", "secrets", ".secret", ".secrets", "password", "passwords", "token", "tokens", "apikey", "api_key")

_NAME, _FOLDER = (re.compile("|".join(map(translate, names))) for names in (NAMES, FOLDERS))
# What follows the beginnings in a section of FILE, as many times as the section says.
SETS = {
    "letters_and_digits": "[A-Za-z0-9]{%d}",
    "capitals_and_digits": r"[A-Z0-9]{%d}\b",
    "hexadecimal": "[A-Fa-f0-9]{%d}",
    "base64url": "[A-Za-z0-9_-]{%d}",
    "base64": "[A-Za-z0-9+/]{%d}",
}
SHORTEST = 20  # characters of the shortest token; only words as long are searched, which halves the time
Forms = Mapping[str, re.Pattern[str]]  # by a text that every match contains, which is searched for first


def _forms() -> tuple[Forms, Forms]:
    """Returns the forms of tokens, which have no blanks, and those of other secrets."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    tokens, texts = (
        {mark: re.compile(pattern, re.VERBOSE | re.ASCII) for mark, pattern in table.pop(name).items()}
        for name in ("tokens", "texts")
    )
    for name, beginnings in table.items():
        for mark, count in beginnings.items():
            tokens[mark] = re.compile(r"\b" + re.escape(mark) + SETS[name] % count)
    return tokens, texts


TOKENS, TEXTS = _forms()
IDENTITY = hashlib.sha256(FILE.read_bytes()).hexdigest()  # of the forms


@lru_cache(maxsize=1 << 16)
def secret_name(name: str) -> bool:
    """True if a file's name, without folders, is that of a file with secrets."""
    name = name.lower()
    stem, suffix = splitext(name)
    return bool(_NAME.match(name)) or (stem in STEMS and suffix in ("", *SETTINGS.split()))


def secret_folder(name: str) -> bool:
    return bool(_FOLDER.match(name.lower()))


def secret_path(path: str) -> bool:
    """True if a path, with forward slashes, has the name of a file or folder with secrets."""
    *folders, name = path.split("/")
    return secret_name(name) or any(map(secret_folder, folders))


def secret_text(text: str) -> bool:
    """True if the text holds a private key, a token of a known form, or a password in a URL."""
    words = " ".join(word for word in text.split() if len(word) >= SHORTEST)
    return _holds(text, TEXTS) or _holds(words, TOKENS)


def _holds(text: str, forms: Forms) -> bool:
    return any(mark in text and pattern.search(text) for mark, pattern in forms.items())


def check_open(path: str, text: str) -> None:
    """Raises ValueError if the cursor's file is taken to hold secrets by its path, or its text holds one."""
    if secret_path(path):
        raise ValueError(
            f"{path} is taken to hold secrets by its name, and these are never read into a "
            "prompt. Rename it if it holds none."
        )
    if secret_text(text):
        raise ValueError(
            f"{path} holds a private key, an access token or a password in a URL, and these are never read into a "
            "prompt. Move it to a file outside the repository."
        )
