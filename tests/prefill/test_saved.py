"""Prefix files: other sessions of the same models reuse the rows of a text, and all others refuse the file."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import cycle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from toys.models import VOCAB, toy_model
from toys.served import characters
from toys.sessions import answered, kinds, toy_prompt, toy_session

from longgraft.engine.session import Session
from longgraft.prefill import prefix_file
from longgraft.prefill.prefixes import RANKED, RANKS, Cell, Prefixes
from longgraft.protocol.observation import Wants

CELL = 16
BEGINS = toy_prompt(90)
FOLLOWS = BEGINS + toy_prompt(20, seed=6)
LEAVES = BEGINS[:70] + toy_prompt(25, seed=3)  # 4 cells and 6 tokens are the same


def session(method: str = "graft", family: str = "llama", most: int = 0, **more) -> Session:
    """Returns a session that keeps at most `most` bytes of prefixes in memory."""
    made = toy_session(method, family, prefixes=Prefixes(most, CELL), **more)
    made.method = method
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A prefix file of BEGINS, made by graft: 5 cells and 10 tokens."""
    path = tmp_path_factory.mktemp("saved") / "begins.prefix"
    session().save_prefix(BEGINS, path)
    return path


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("method", "family", "chunk"),
    [*zip(kinds(), cycle(("llama", "qwen3", "mistral-window", "qwen3-moe")), cycle((17, None, 32)), strict=False)],
    ids=str,
)
def test_a_prefix_file_gives_the_same_answers_as_reading_its_text(method, family, chunk, tmp_path):
    """Compares answers and proposals of a session that keeps nothing itself; the short last cell is reused, too."""
    path = tmp_path / "begins.prefix"
    assert session(method, family, chunk=chunk).save_prefix(BEGINS, path).bytes == path.stat().st_size
    knows = session(method, family, chunk=chunk)
    assert knows.pin_prefix(path) == 90
    mine, theirs = (answered(one, FOLLOWS, 6) for one in (knows, toy_session(method, family, chunk=chunk)))
    assert mine.token_ids == theirs.token_ids
    assert mine.stats.accepted_per_step == theirs.stats.accepted_per_step
    memories = knows.engine.proposer.memories
    tail = max((memory.tail for memory in memories), default=1)
    part = CELL if any(memory.wants.topk for memory in memories) else 1
    assert mine.stats.reused_tokens == (89 if tail <= 21 else (111 - tail) // part * part - 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("prompt", "reused"),
    [
        (FOLLOWS, 89),
        (BEGINS, 89),
        (LEAVES, 63),
        (BEGINS[:85], 84),
        (BEGINS[:87] + LEAVES[70:], 86),
        (BEGINS[:80], 79),
        (toy_prompt(90, seed=4), 0),
    ],
)
def test_only_tokens_that_a_prompt_shares_with_the_file_are_reused(file, prompt, reused):
    knows, bare = session(), toy_session("graft")
    knows.pin_prefix(file)
    for _ in range(2):
        found = answered(knows, prompt, 6)
        assert found.token_ids == answered(bare, prompt, 6).token_ids
        assert found.stats.reused_tokens == reused


def test_prompts_are_kept_behind_a_file_and_the_file_is_not_counted(file):
    knows = session(most=2**30)
    knows.pin_prefix(file)
    kept, longer = knows.engine.prefixes, FOLLOWS + toy_prompt(40, seed=8)
    assert [answered(knows, longer, 4).stats.reused_tokens for _ in range(2)] == [89, 143]
    alone = session(most=2**30)
    answered(alone, longer, 4)
    assert (len(kept), len(alone.engine.prefixes)) == (4, 9) and kept.bytes * 9 == alone.engine.prefixes.bytes * 4
    whole = alone.engine.prefixes
    for mine, theirs in zip(*(one.known(one.keys(longer), (), 144) for one in (kept, whole)), strict=True):
        ranked = theirs.reports[RANKED]  # a cell that was read in two parts may have more
        assert mine.reports[RANKED][ranked].all()
        assert mine.reports[RANKS][ranked].equal(theirs.reports[RANKS][ranked])
    kept.clear()
    assert answered(knows, longer, 4).stats.reused_tokens == 89


def test_kept_cells_that_a_pinned_file_holds_are_not_counted(file):
    knows = session(most=2**30)
    answered(knows, FOLLOWS, 4)
    assert len(knows.engine.prefixes) == 6
    knows.pin_prefix(file)
    alone = session(most=2**30)
    answered(alone, FOLLOWS[:17], 4)
    assert len(knows.engine.prefixes) == len(alone.engine.prefixes) == 1
    assert knows.engine.prefixes.bytes == alone.engine.prefixes.bytes
    knows.engine.prefixes.most = 0
    assert answered(knows, LEAVES, 4).stats.reused_tokens == 63


def test_the_longest_of_several_files_is_taken(file, tmp_path):
    knows = session()
    for number, text in enumerate((BEGINS[:50], FOLLOWS, toy_prompt(90, seed=4))):
        session().save_prefix(text, tmp_path / str(number))
        knows.pin_prefix(tmp_path / str(number))
    knows.pin_prefix(file)
    found = [answered(knows, text, 4).stats.reused_tokens for text in (BEGINS[:60], BEGINS, [*FOLLOWS, 1, 2])]
    assert found == [49, 89, 109]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("maker", "method"),
    [
        ("graft", "ar"),
        ("graft", "pld"),
        ("graft", "retrieval"),
        ("graft", "eagle3"),
        ("logitspec", "retrieval"),
        ("logitspec", "lookahead"),
    ],
)
def test_a_method_that_needs_less_accepts_the_file(maker, method, tmp_path):
    session(maker).save_prefix(BEGINS, tmp_path / "p")
    knows = session(method)
    knows.pin_prefix(tmp_path / "p")
    mine, theirs = (answered(one, FOLLOWS, 8) for one in (knows, toy_session(method)))
    assert (mine.token_ids, mine.stats.accepted_per_step) == (theirs.token_ids, theirs.stats.accepted_per_step)
    assert mine.stats.reused_tokens == 89


@pytest.mark.parametrize(
    ("maker", "method", "lacking"),
    [
        ("ar", "graft", "no rows of the drafter"),
        ("eagle3", "graft", "no top tokens"),
        ("retrieval", "graft-x-text", "no probabilities of top tokens"),
        ("pld", "sps", "no rows of the small"),
        ("graft", "logitspec", "no 64 top tokens of each"),
        ("graft", "medusa", "no final hidden states"),
    ],
)
def test_a_method_that_needs_more_is_refused_with_what_is_missing(maker, method, lacking, tmp_path):
    session(maker).save_prefix(BEGINS, tmp_path / "p")
    with pytest.raises(ValueError, match=f"holds {lacking}.*method {maker}.*--method {method}"):
        session(method).pin_prefix(tmp_path / "p")


def changed(file, path, tensors=None, **about):
    """Writes a copy of the file with these changes, and returns its path."""
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    found = {name: rows.clone() for name, rows in load_file(file).items()}
    save_file(
        {name: rows for name, rows in (found | (tensors or {})).items() if rows is not None},
        path,
        {name: value for name, value in (metadata | about).items() if value is not None},
    )
    return path


def refused(path, *words):
    """Checks that a file is refused with its name, these words and advice, and that nothing of it is reused."""
    knows = session()
    with pytest.raises(ValueError) as error:
        knows.pin_prefix(path)
    message = str(error.value)
    assert all(word in message for word in (str(path), "ake it again with `longgraft prefill", *words)), message
    assert answered(knows, BEGINS, 2).stats.reused_tokens == 0


def test_every_part_of_the_identity_is_compared(file, tmp_path):
    with safe_open(file, framework="pt") as opened:
        identity = json.loads(opened.metadata()["identity"])
    assert set(identity) == {
        "dtype",
        "rope",
        "configuration",
        "weights",
        "tokenizer",
        "drafter rope",
        "drafter window",
        "drafter weights",
    }
    for label, value in identity.items():
        other = changed(file, tmp_path / "other", identity=json.dumps(identity | {label: "something else"}))
        refused(other, f"was made for {label} something else", f"this session has {value}")
    refused(
        changed(file, tmp_path / "other", identity=json.dumps(identity | {"dtype": "bfloat16"})),
        "or load with dtype=bfloat16",
    )


def test_a_file_of_another_model_names_both(file, tmp_path):
    with safe_open(file, framework="pt") as opened:
        identity = json.loads(opened.metadata()["identity"])
    name = session().target.name
    words = f"was made for model theirs, and this session has {name}. Make"
    for label in "configuration", "weights", "tokenizer":
        refused(
            changed(file, tmp_path / "p", model="theirs", identity=json.dumps(identity | {label: "another"})), words
        )
    of_another_name = changed(file, tmp_path / "p", model="theirs")
    session().pin_prefix(of_another_name)
    narrower = changed(file, tmp_path / "p", model="theirs", identity=json.dumps(identity | {"dtype": "bfloat16"}))
    refused(narrower, "was made for dtype bfloat16 (model theirs, ")


def test_files_of_other_weights_or_settings_are_refused(file):
    tuned = session()
    model = tuned.target.model = deepcopy(toy_model("llama"))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight += 1e-3
    for other, label in (
        (tuned, "weights"),
        (session(seed=1), "drafter weights"),
        (session("graft+window=32"), "drafter window"),
        (session(family="qwen3"), "model llama, and this session has qwen3"),
    ):
        with pytest.raises(ValueError, match=f"made for {label}"):
            other.pin_prefix(file)
    rope = session()
    rope.target.model = deepcopy(toy_model("llama"))
    rope.target.model.config.rope_parameters = {"rope_type": "default", "rope_theta": 5e5}
    rope.target.__dict__.pop("config", None)
    with pytest.raises(ValueError, match="made for rope"):
        rope.pin_prefix(file)
    for name, value in (("rms_norm_eps", 1e-2), ("hidden_act", "gelu"), ("num_attention_heads", 2)):
        other = session()
        other.target.model = deepcopy(toy_model("llama"))
        setattr(other.target.model.config, name, value)
        other.target.__dict__.pop("config", None)
        with pytest.raises(ValueError, match="made for configuration"):
            other.pin_prefix(file)
    with pytest.raises(ValueError, match="made for tokenizer"):
        Session(session().engine, characters()).pin_prefix(file)


def test_damaged_and_foreign_files_are_refused(file, tmp_path):
    whole, path = file.read_bytes(), tmp_path / "p"
    for end in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        refused(path, "cannot be read")
    path.write_text("A text, and no rows of anything.")
    refused(path, "cannot be read")
    refused(tmp_path / "nowhere", "cannot be read", "No such file")
    refused(tmp_path, "cannot be read")
    save_file({"rows": torch.zeros(3)}, path, {"version": "1"})
    refused(path, "is not a prefix file")
    refused(changed(file, path, **{prefix_file.KIND: "2"}), "has format 2")
    refused(changed(file, path, cell="32"), "has cells of 32 tokens", "16 are needed")
    refused(changed(file, path, identity=None), "'identity' is missing")
    for identity in ("[]", "5", "null"):
        refused(changed(file, path, identity=identity), "was changed after it was made")
    flat = changed(file, path, {"/ranks": load_file(file)["/ranks"].flatten()})
    refused(flat, "holds no", "top tokens of each")
    refused(changed(file, path, identity="{"), "cannot be read")


def test_a_file_with_fewer_probabilities_than_tokens_is_refused(tmp_path):
    path = tmp_path / "whole"
    session("graft-x-text").save_prefix(BEGINS, path)
    narrow = load_file(path)["/probabilities"][:, :3].contiguous()
    with pytest.raises(ValueError, match="holds no 8 probabilities of top tokens of each"):
        session("graft-x-text").pin_prefix(changed(path, tmp_path / "narrow", {"/probabilities": narrow}))


def test_a_file_whose_rows_or_tokens_were_changed_is_refused(file, tmp_path):
    found, path = load_file(file), tmp_path / "p"
    keys, ids = found["target/1.keys"], found["ids"]
    changes = (
        {"target/1.keys": keys[:, :, :-1].contiguous()},
        {"target/1.keys": keys.half()},
        {"target/1.keys": None},
        {"target/9.keys": keys},
        {"ids": ids.flip(0)},
        {"ids": ids[:-1].clone()},
        {"ids": None},
        {"drafter/0.values": None},
        {"target/1.keys": keys.flip(2)},
        {"/ranks": found["/ranks"].flip(1)},
    )
    for tensors in changes:
        refused(changed(file, path, tensors), "was changed after it was made")


@pytest.mark.parametrize(
    "value, last, message",
    [
        (float("nan"), 3, "NaN or infinite"),
        (float("inf"), 3, "NaN or infinite"),
        (0.0, VOCAB, f"ids from 1 to {VOCAB}, and the vocabulary has {VOCAB}"),
    ],
)
def test_rows_and_ids_that_no_model_has_are_refused(value, last, message, tmp_path):
    rows = torch.zeros(1, 2, 3, 8)
    rows[0, 1, 2, 3] = value
    wanted = prefix_file.Needed({}, ["target"], Wants(), CELL, VOCAB, "toy", "ar")
    prefix_file.save(tmp_path / "p", [1, 2, last], Cell({"target": {"0.keys": rows}}, {}), wanted)
    with pytest.raises(ValueError, match=message):
        prefix_file.load(tmp_path / "p", wanted, torch.device("cpu"))


def crafted(file, path, tensors=None, **about):
    """Does what `changed` does, with the digest of the changed tensors."""
    changed(file, path, tensors)
    return changed(path, path, digest=prefix_file._digest(load_file(path)), **about)


CRAFTED = {
    "without ids": ({"ids": torch.zeros(0, dtype=torch.int64)}, "token ids as torch.int64 [0], and a list of int64"),
    "with ids as numbers": ({"ids": torch.zeros(90)}, "token ids as torch.float32 [90]"),
    "with a matrix of ids": ({"ids": torch.zeros(9, 10, dtype=torch.int64)}, "token ids as torch.int64 [9, 10]"),
    "with one id of no dimension": ({"ids": torch.tensor(3)}, "token ids as torch.int64 []"),
    "with more ids than rows": ({"ids": torch.zeros(91, dtype=torch.int64)}, "are no rows of 91 tokens"),
    "with a number for keys": ({"target/1.keys": torch.tensor(1.0)}, "target/1.keys as torch.float32 []"),
    "with flat keys": ({"target/1.keys": torch.zeros(90, 8)}, "target/1.keys as torch.float32 [90, 8]"),
    "with keys as ids": ({"target/1.keys": torch.zeros(1, 2, 90, 8, dtype=torch.int64)}, "as torch.int64 [1, 2, 90"),
    "with keys of a batch": ({"target/1.keys": torch.zeros(2, 2, 90, 8)}, "[2, 2, 90, 8], which are no rows"),
    "with keys of another head size": ({"target/1.keys": torch.zeros(1, 2, 90, 16)}, "this session makes"),
    "with keys of one head": ({"target/1.keys": torch.zeros(1, 1, 90, 8)}, "this session makes torch.float32 [1, 2,"),
    "with keys in bfloat16": ({"target/1.keys": torch.zeros(1, 2, 90, 8).bfloat16()}, "as torch.bfloat16 [1, 2, 90"),
    "without the keys of a layer": ({"target/1.keys": None}, "rows of the target for other layers than it has"),
    "with another layer": ({"target/9.keys": torch.zeros(1, 2, 90, 8)}, "rows of the target for other layers"),
    "with rows of no kind": ({"target/1.more": torch.zeros(1, 2, 90, 8)}, "holds target/1.more as"),
    "with names of three parts": ({"target/1.keys/x": torch.zeros(1, 2, 90, 8)}, "holds target/1.keys/x as"),
    "with flat ranks": ({"/ranks": torch.zeros(90, 8)}, "holds /ranks as torch.float32 [90, 8]"),
    "with ranks beyond the vocabulary": (
        {"/ranks": torch.full((90, 8), VOCAB, dtype=torch.int32)},
        f"holds ids from {VOCAB} to {VOCAB}, and the vocabulary",
    ),
    "with ranked tokens as numbers": ({"/ranked": torch.zeros(90)}, "holds /ranked as torch.float32 [90]"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_file_with_the_digest_of_its_rows_is_refused(what, file, tmp_path):
    tensors, said = CRAFTED[what]
    refused(crafted(file, tmp_path / "p", tensors), said)


def test_an_identity_of_200_000_brackets_is_refused(file, tmp_path):
    refused(changed(file, tmp_path / "p", identity="[" * 200_000), "cannot be read: it is nested too deeply")


def test_saving_overwrites_nothing_and_leaves_no_partial_file(file, tmp_path, monkeypatch):
    before = file.read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        session().save_prefix(BEGINS, file)
    with pytest.raises(ValueError, match="is no folder that you can write to"):
        session().save_prefix(BEGINS, tmp_path / "nowhere" / "p")
    assert file.read_bytes() == before

    def full(tensors, path, about):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ValueError, match=r"cannot be written: No space left"):
        session().save_prefix(BEGINS, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_the_last_token_of_a_saved_text_is_left_out(tmp_path):
    made = Session(session().engine, characters())
    assert made.save_prefix("def add(a, b):\n    return", tmp_path / "text").tokens == 24
    assert made.save_prefix([5, 6, 7], tmp_path / "ids").tokens == 3
    assert made.pin_prefix(tmp_path / "text") == 24
    assert answered(made, made.encode("def add(a, b):\n    returns"), 2).stats.reused_tokens == 23
