"""Random keys of each kind are found, wherever they stand, and texts about keys are not taken for keys."""

from __future__ import annotations

import random
import re
import string

import pytest
from toys.sources import ROOT

from longgraft.completion.repository.secret_files import TEXTS, TOKENS, secret_path, secret_text

DRAWN = 200  # keys of each kind
LETTERS = string.ascii_letters + string.digits
SETS = {
    "a": LETTERS,
    "u": LETTERS + "_-",
    "b": LETTERS + "+/",
    "x": string.digits + "abcdef",
    "X": string.digits + string.ascii_uppercase,
    "l": string.digits + string.ascii_lowercase,
    "d": string.digits,
    "p": LETTERS + "!&;=~.-_",
}
# <u20> stands for 20 characters of the set u.  The keys are not whole, so that this file holds no secret.
KINDS = {
    "OpenAI's older": "sk-<a20>T3BlbkFJ<a20>",
    "OpenAI's of a project": "sk-proj-<u74>T3BlbkFJ<u74>",
    "OpenAI's of a service account": "sk-svcacct-<u74>T3BlbkFJ<u74>",
    "OpenAI's of an admin": "sk-admin-<u58>T3BlbkFJ<u58>",
    "OpenAI's of no project": "sk-None-<u40>",
    "OpenRouter": "sk-or-v1-<x64>",
    "Anthropic": "sk-ant-api03-<u93>AA",
    "DeepSeek": "sk-<x32>",
    "an sk- key with - in it": "sk-<u48>",
    "AWS, secret key in the credentials": "aws_secret_access_key = <b40>",
    "AWS, secret key in a shell": "export AWS_SECRET_ACCESS_KEY='<b40>'",
    "AWS, secret key in JSON": '"SecretAccessKey": "<b40>"',
    "AWS, secret key in a program": 'secretAccessKey: "<b40>",',
    "AWS, access key": "AKIA<X16>",
    "AWS, session": "ASIA<X16>",
    "AWS, others": "A3T<X17>",
    "AWS, bearer": "ABIA<X16>",
    "AWS, context": "ACCA<X16>",
    "AWS Bedrock": "ABSK<b110>",
    "Google, OAuth client": "GOCSPX-<u28>",
    "Google, access": "ya29.<u120>",
    "Google, refresh": "1//0<u60>",
    "Google, API key": "AIza<u35>",
    "Slack, app": "xapp-1-A<X10>-<d13>-<x64>",
    "Slack, bot": "xoxb-<d12>-<d12>-<a24>",
    "Slack, webhook": "https://hooks.slack.com/services/T<X8>/B<X10>/<a24>",
    "Discord, webhook": "https://discord.com/api/webhooks/<d18>/<u68>",
    "Telegram": "<d10>:AA<u33>",
    "GitHub": "ghp_<a36>",
    "GitHub, OAuth": "gho_<a36>",
    "GitHub, user": "ghu_<a36>",
    "GitHub, server": "ghs_<a36>",
    "GitHub, refresh": "ghr_<a36>",
    "GitHub, fine-grained": "github_pat_<a22>_<a59>",
    "GitLab": "glpat-<u20>",
    "GitLab, trigger": "glptt-<x40>",
    "GitLab, runner's registration": "GR1348941<u20>",
    **{
        f"GitLab, {name}": f"gl{name}-<u64>"
        for name in ["agent", "cbt", "dt", "ffct", "ft", "imt", "oas", "rt", "soat"]
    },
    "npm": "npm_<a36>",
    "PyPI": "pypi-AgEIcHlwaS5vcmc<u120>",
    "RubyGems": "rubygems_<x48>",
    "Clojars": "CLOJARS_<l60>",
    "Docker": "dckr_pat_<u27>",
    "Docker, organization": "dckr_oat_<u32>",
    "Hugging Face": "hf_<a34>",
    "Groq": "gsk_<a52>",
    "Perplexity": "pplx-<a48>",
    "Replicate": "r8_<a37>",
    "NVIDIA": "nvapi-<u64>",
    "Tavily": "tvly-<a32>",
    "xAI": "xai-<a80>",
    "LangSmith": "lsv2_pt_<x32>_<x10>",
    "LangSmith, service": "lsv2_sk_<x32>_<x10>",
    "Stripe": "sk_live_<a24>",
    "Stripe, restricted": "rk_live_<a24>",
    "Stripe, test": "sk_test_<a24>",
    "Stripe, restricted test": "rk_test_<a24>",
    "Square": "sq0atp-<u22>",
    "Square, secret": "sq0csp-<u43>",
    "Shopify": "shpat_<x32>",
    "Shopify, custom": "shpca_<x32>",
    "Shopify, private": "shppa_<x32>",
    "Shopify, shared": "shpss_<x32>",
    "Shippo": "shippo_live_<x40>",
    "EasyPost": "EZAK<a54>",
    "Duffel": "duffel_live_<u43>",
    "SendGrid": "SG.<u22>.<u43>",
    "Brevo": "xkeysib-<x64>-<l16>",
    "Twilio": "SK<x32>",
    "Azure Storage": "AccountKey=<b86>==",
    "Azure, client": "<a3>8Q~<u34>",
    "DigitalOcean": "dop_v1_<x64>",
    "DigitalOcean, OAuth": "doo_v1_<x64>",
    "DigitalOcean, refresh": "dor_v1_<x64>",
    "Alibaba Cloud": "LTAI<a20>",
    "Databricks": "dapi<x32>",
    "Supabase": "sbp_<x40>",
    "Supabase, secret": "sb_secret_<u31>",
    "PlanetScale": "pscale_tkn_<u43>",
    "PlanetScale, OAuth": "pscale_oauth_<u43>",
    "PlanetScale, password": "pscale_pw_<u43>",
    "Pulumi": "pul-<x40>",
    "HashiCorp Vault": "hvs.<u95>",
    "HashiCorp Vault, batch": "hvb.<u140>",
    "HashiCorp Terraform": "<a14>.atlasv1.<u64>",
    "Heroku": "HRKU-AA<u58>",
    "Fly.io": "fo1_<u43>",
    "Fly.io, macaroon": "fm2_<b120>",
    "OpenShift": "sha256~<u43>",
    "Octopus Deploy": "API-<X26>",
    "Prefect": "pnu_<a36>",
    "Doppler": "dp.pt.<a43>",
    "Grafana": "glsa_<a32>_<x8>",
    "Grafana Cloud": "glc_<b60>",
    "Dynatrace": "dt0c01.<X24>.<X64>",
    "New Relic": "NRAK-<X27>",
    "Sentry": "sntryu_<x64>",
    "Sourcegraph": "sgp_<x16>_<x40>",
    "PostHog": "phx_<a43>",
    "MaxMind": "<a6>_<a29>_mmk",
    "Postman": "PMAK-<x24>-<x34>",
    "ReadMe": "rdme_<l70>",
    "Linear": "lin_api_<a40>",
    "Notion": "ntn_<d11><a35>",
    "Figma": "figd_<u40>",
    "Typeform": "tfp_<u59>",
    "Atlassian": "ATATT3<u186>",
    "1Password": "A3-<X6>-<X11>-<X5>-<X5>-<X5>",
    "1Password, service account": "ops_eyJ<b250>",
    "age": "AGE-SECRET-KEY-1<X58>",
    "JSON web token": "eyJ<u20>.eyJ<u40>.<u43>",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n<b64>\n",
    "password of a database": "postgresql://app:<p16>@db.example.com/app",
    "password of a cache": "redis://:<p24>@10.0.0.1:6379",
    "password of a git remote": "https://robot:<a40>@git.example.com/a.git",
    "password of a broker": "amqps://service:<p12>@mq.example.com",
}


def drawn(form: str, draw: random.Random) -> str:
    """Returns a random key of a form."""
    return re.sub(r"<(.)(\d+)>", lambda match: "".join(draw.choices(SETS[match[1]], k=int(match[2]))), form)


@pytest.mark.parametrize("kind", KINDS)
def test_random_keys_of_each_kind_are_found(kind):
    draw = random.Random(kind)
    keys = [drawn(KINDS[kind], draw) for _ in range(DRAWN)]
    missed = [key for key in keys if not secret_text(f"x = 1\nk = {key}\ny = 2\n")]
    assert not missed, f"{len(missed)} of {DRAWN} missed, such as {missed[0]}"


def test_each_form_has_a_kind_of_key_that_no_other_form_finds():
    forms = TOKENS | TEXTS
    draw = random.Random(0)
    alone = set()
    for form in KINDS.values():
        key = f"k = {drawn(form, draw)}\n"
        found = [mark for mark, pattern in forms.items() if mark in key and pattern.search(key)]
        alone |= {*found} if len(found) == 1 else set()
    assert not forms.keys() - alone


@pytest.mark.parametrize(
    "text",
    [
        "https://user:password@example.com/",
        "postgres://postgres:postgres@localhost/app",
        "https://{user}:{password}@host",
        "https://${USER}:${TOKEN}@host",
        "https://%s:%s@host",
        "http://localhost:8080/@scope/package",
        "redis://:changeme@localhost",
        "http://a.example:80/see?mail=someone@b.example",
        "sk-estimator-with-a-long-name-of-many-words-2",
        "task-" + "Ab1" * 20,
        "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
        "aws_secret_access_key: " + "0f" * 32,
        "ghp_" + "a" * 35,
        "AKIA" + "A" * 17,
    ],
)
def test_texts_about_keys_are_no_keys(text):
    assert not secret_text(f"x = 1\n{text}\n")


def test_no_file_of_this_repository_is_taken_for_a_secret():
    files = [path for folder in ("longgraft", "docs", "tests") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    assert len(files) > 500
    taken = [path for path in files if secret_path(path.name) or secret_text(path.read_text(encoding="utf-8"))]
    assert not taken


def test_each_beginning_needs_as_many_characters_as_its_issuer_gives_it():
    """AWS's access keys have 20 characters, and a shorter or longer word is none."""
    assert secret_text("k = AKIA" + "A" * 16)
    assert not secret_text("k = AKIA" + "A" * 15)
