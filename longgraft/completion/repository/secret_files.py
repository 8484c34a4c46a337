"""Files that hold secrets, recognized by name and content; they are never read into a prompt.

A secret that no pattern here matches is not found, so what must not be seen belongs outside the repository.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from posixpath import splitext

# Patterns of file names, in lower case.
NAMES = tuple(
    name
    for names in (
        ".env* *.env *.pem *.key *.p12 *.pfx *.p8 *.jks *.keystore *.ppk *.gpg *.kdbx *.kdb *.ovpn",
        "*.tfvars *.tfvars.json *.tfstate* *_rsa *_dsa *_ecdsa *_ed25519 id_rsa* id_dsa* id_ecdsa* id_ed25519*",
        "credentials* .credentials* client_secret* .netrc _netrc .npmrc .yarnrc* .pypirc .htpasswd .pgpass .my.cnf",
        ".git-credentials .dockercfg .dockerconfigjson .boto .s3cfg local.settings.json wp-config.php",
        "*service-account*.json *service_account*.json *serviceaccount*.json",
    )
    for name in names.split()
)
FOLDERS = (".env*", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store")
# Files with these stems hold secrets if they are settings (secrets.yaml), but not if they are code (secrets.py).
SETTINGS = ".json .yaml .yml .toml .ini .cfg .conf .txt .xml .properties .enc .csv"  # or no suffix at all
STEMS = ("secret", "secrets", ".secret", ".secrets", "password", "passwords", "token", "tokens", "apikey", "api_key")

_NAME, _FOLDER = (re.compile("|".join(map(translate, names))) for names in (NAMES, FOLDERS))
# (text that every match contains, pattern): searching for the text first is many times faster.
_CONTENTS = tuple(
    (mark, re.compile(pattern))
    for mark, pattern in (
        # A key block, also with \n written in a string; a header alone, as in programs, does not match.
        ("PRIVATE KEY", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]{0,200}?[A-Za-z0-9+/=]{40}"),
        ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
        ("ASIA", r"\bASIA[0-9A-Z]{16}\b"),
        *((f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{36}}") for kind in "pousr"),
        ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{50}"),
        ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20}"),
        ("xox", r"xox[abeoprs]-[A-Za-z0-9-]{20}"),
        ("AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
        ("sk-", r"\bsk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_]{32}"),
        ("sk_live_", r"\bsk_live_[A-Za-z0-9]{20}"),
        ("rk_live_", r"\brk_live_[A-Za-z0-9]{20}"),
        ("hf_", r"\bhf_[A-Za-z0-9]{34}"),
        ("npm_", r"\bnpm_[A-Za-z0-9]{36}"),
        ("pypi-", r"\bpypi-AgE[A-Za-z0-9_-]{40}"),
        ("SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
        ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
        ("eyJ", r"\beyJ[A-Za-z0-9_-]{16,2048}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16}"),
    )
)


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
    """True if the text holds a private key, or a token of a known form."""
    return any(mark in text and pattern.search(text) for mark, pattern in _CONTENTS)


def check_open(path: str, text: str) -> None:
    """Raises ValueError if the cursor's file is taken to hold secrets by its path, or its text holds one."""
    if secret_path(path):
        raise ValueError(
            f"{path} is taken to hold secrets by its name, and these are never read into a "
            "prompt. Rename it if it holds none."
        )
    if secret_text(text):
        raise ValueError(
            f"{path} holds a private key or an access token, and these are never read into a "
            "prompt. Move it to a file outside the repository."
        )
