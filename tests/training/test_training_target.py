"""The embedded target's trainer, on a toy corpus and a toy model."""

from __future__ import annotations

import dataclasses
import io
import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from toys.tokenizers import sentencepiece
from toys.training import TARGET

from longgraft.yarn_drafters.training.corpus import encode_corpus, token_bytes, train_tokenizer
from longgraft.yarn_drafters.training.documents import PROSE
from longgraft.yarn_drafters.training.loop import skipped_positions
from longgraft.yarn_drafters.training.recipe import Stage
from longgraft.yarn_drafters.training.schedule import cosine, warmup_stable_decay
from longgraft.yarn_drafters.training.streams import TokenStream, grouped_documents, mixed_documents
from longgraft.yarn_drafters.training.target import (
    TargetRecipe,
    TargetTrainer,
    next_token_loss,
    train_target,
)

pytestmark = pytest.mark.usefixtures("one_thread")

AWKWARD = (
    "def f(a):\n\treturn  a['é']\r\n\r\n    # 日本 🙂 1234.5\n \n\n",
    "",
    "\r\r\n\x00 \u00a0x",
    "  lead\n\n  ",
    "<|endoftext|> __init__ ...and\ttabs\t\n",
)


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    kinds = ("code-python", "code-python", "docs", "book")
    rows = (
        {
            "text": f"def f{i}(x):\n    return x + {i}\n" * (5 + i % 7),
            "type": kinds[i % 4],
            "source": f"owner/repo{i % 3}@abc:file{i}.py",
        }
        for i in range(40)
    )
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(corpus_file):
    rows = [json.loads(line) for line in corpus_file.read_text().splitlines()]
    return train_tokenizer((row["text"] for row in rows), 300)


@pytest.fixture
def corpus(corpus_file, tokenizer, tmp_path):
    return encode_corpus([corpus_file], tokenizer, tmp_path / "corpus.npz")


def test_bytes_per_token_are_those_of_its_text(tokenizer):
    """Also for tokenizers whose vocabulary does not spell bytes as characters."""
    for words in (tokenizer, sentencepiece()):
        widths = token_bytes(words)
        names = words.convert_ids_to_tokens(list(range(len(words))))
        spelt = {
            name: len(name.replace("\u2581", " ").encode()) for name in names if name.isascii() or "\u2581" in name
        }
        spelt |= {name: 1 for name in names if name.startswith("<0x")} | {name: 0 for name in words.all_special_tokens}
        assert {name: widths[names.index(name)] for name in spelt} == spelt


def test_a_corpus_is_encoded_again_for_files_of_other_names(tmp_path, tokenizer):
    """A name decides how a file is read."""
    for name, kinds in (("a.txt", ("text",)), ("a.jsonl", ("code-python",))):
        (tmp_path / name).write_text('{"text": "x = 1", "type": "code-python"}')
        assert encode_corpus([tmp_path / name], tokenizer, tmp_path / "corpus.npz").types == kinds


@pytest.mark.parametrize("text", AWKWARD)
def test_the_tokenizer_gives_every_text_back_byte_for_byte(text, tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert each.decode(each(text).input_ids, skip_special_tokens=False) == text


def test_indentation_is_one_token_and_digits_are_single(tokenizer):
    names = [tokenizer.decode([i]) for i in tokenizer("x\n    return 12").input_ids]
    assert "    " in names and names[-2:] == ["1", "2"]


def test_the_cache_holds_the_same_corpus(corpus, corpus_file, tokenizer, tmp_path):
    again = encode_corpus([corpus_file], tokenizer, tmp_path / "corpus.npz")
    assert np.array_equal(again.tokens, corpus.tokens) and again.sources == corpus.sources


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("length", [16, 64])
def test_every_token_is_an_input_once_and_a_target_once(shuffled, length, corpus, monkeypatch):
    size = len(corpus.tokens)
    monkeypatch.setattr(TokenStream, "window", 64 * -(-size // 64))  # beyond the epoch's end
    stream = TokenStream(corpus, 3, partial(mixed_documents, prose_share=0.9), shuffled=shuffled)
    rows = stream.rows(0, stream.window // length, length)
    plain = stream.read(0, stream.window + 1)
    assert sorted(plain[:size]) == sorted(corpus.tokens)
    assert sorted(rows[:, :-1].flatten()) == sorted(plain[:-1])
    assert sorted(rows[:, 1:].flatten()) == sorted(plain[1:])


def test_prose_stays_under_its_share_and_groups_stay_together(corpus):
    rng, lengths = np.random.default_rng(0), corpus.lengths()
    chosen = mixed_documents(corpus, rng, 0.1)
    prose = [d for d in chosen if corpus.types[d] in PROSE]
    assert 0 < lengths[prose].sum() <= 0.1 * lengths[chosen].sum()
    groups = [corpus.sources[d].split("@")[0] for d in grouped_documents(corpus, rng, 0.1)]
    assert sum(a != b for a, b in pairwise(groups)) == len(set(groups)) - 1


def test_skipping_moves_only_the_second_piece_and_stays_in_range():
    positions = skipped_positions(50, 32, Stage(32, 1.0, skip=1.0), 4096, np.random.default_rng(0))
    steps = positions.diff(dim=1)
    assert (positions[:, 0] == 0).all() and positions.max() < 4096
    assert ((steps != 1).sum(dim=1) <= 1).all() and (steps >= 1).all()
    assert positions.max() > 2048


def test_a_jump_in_the_positions_does_not_cut_attention(tokenizer, corpus, tmp_path):
    model = TargetTrainer(TARGET, tokenizer, corpus, tmp_path).model
    rows = torch.from_numpy(np.stack([corpus.tokens[:33]]).astype(np.int64))
    jumped = torch.arange(32)[None] + 1000 * (torch.arange(32) >= 16)
    changed = rows.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 300
    losses = [next_token_loss(model, r, jumped)[-1] for r in (rows, changed)]
    assert losses[0] != losses[1]  # the last target still depends on the first token
    plain = model(rows[:, :-1]).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(plain, rows[:, 1:].flatten(), reduction="none")
    ours = next_token_loss(model, rows, torch.arange(32)[None])
    torch.testing.assert_close(ours, expected)


def test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one(tokenizer, corpus, tmp_path):
    whole = TargetTrainer(TARGET, tokenizer, corpus, tmp_path)
    losses = []
    for step in range(12):  # through all three stages
        if step in (4, 8):
            whole.save()
            (tmp_path / f"at{step}").mkdir()
            (tmp_path / "checkpoint.pt").rename(tmp_path / f"at{step}" / "checkpoint.pt")
        losses.append(whole.step())
    assert [TARGET.stage_at(128 * step / 1536).length for step in (0, 7, 11)] == [16, 32, 64]
    for step in (4, 8):
        resumed = TargetTrainer(TARGET, tokenizer, corpus, tmp_path / f"at{step}")
        assert resumed.resume()
        assert [resumed.step() for _ in range(12 - step)] == losses[step:]


def test_a_resumed_run_follows_the_recipe_it_is_given(tokenizer, corpus, tmp_path):
    TargetTrainer(TARGET, tokenizer, corpus, tmp_path).save()
    slower = TargetTrainer(dataclasses.replace(TARGET, muon_lr=1e-4), tokenizer, corpus, tmp_path)
    slower.resume()
    assert slower.optimizers[0].param_groups[0]["peak"] == 1e-4


def ended(corpus_file, out, **changes):
    """Trains two steps, or more with other settings; returns (recipe.json, the log's events)."""
    recipe = dataclasses.replace(TARGET, **{"total_tokens": 256, "tokens_per_step": 128} | changes)
    train_target(recipe, [corpus_file], [], out)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return json.loads((out / "recipe.json").read_text()), [line for line in lines if "event" in line]


def test_a_finished_run_with_other_settings_is_refused_and_its_recipe_stays(corpus_file, tmp_path):
    made, events = ended(corpus_file, tmp_path)
    with pytest.raises(
        ValueError,
        match=r"a finished training with other settings: muon_lr 0\.0035, now 0\.001\.\n"
        r"No step is left for them\. Give --out another folder, or a larger total",
    ):
        ended(corpus_file, tmp_path, muon_lr=0.001)
    with pytest.raises(ValueError, match=r"training text '[\d,]+ tokens .*, now '"):
        other = tmp_path / "other.txt"
        other.write_text(corpus_file.read_text() + "def g(): pass")
        ended(other, tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(without(tmp_path / "checkpoint.pt", "made_with"))  # an older version's
    with pytest.raises(ValueError, match=r"other settings: seed 0, now 1\."):
        ended(corpus_file, tmp_path, seed=1)
    again, later = ended(corpus_file, tmp_path, threads=None, log_steps=3)
    assert again == made and [line["event"] for line in later] == ["started", "finished", "resumed", "finished"]
    assert "changed" not in later[2] and later[:2] == events


def without(checkpoint, name):
    saved = torch.load(checkpoint, weights_only=True)
    del saved[name]
    torch.save(saved, file := io.BytesIO())
    return file.getvalue()


def test_a_finished_run_goes_on_with_more_tokens_and_notes_what_changed(corpus_file, tmp_path):
    ended(corpus_file, tmp_path)
    made, events = ended(corpus_file, tmp_path, total_tokens=512, muon_lr=0.001)
    assert made["muon_lr"] == 0.001 and events[-1]["tokens"] == 512
    assert events[2]["changed"] == "total_tokens 256, now 512; muon_lr 0.0035, now 0.001"


def test_an_unfinished_run_ends_early_with_fewer_tokens_and_keeps_its_recipe(corpus_file, tokenizer, corpus, tmp_path):
    begun = TargetTrainer(dataclasses.replace(TARGET, total_tokens=2048), tokenizer, corpus, tmp_path)
    begun.step()
    begun.step()
    begun.save()
    (tmp_path / "recipe.json").write_text(json.dumps(dataclasses.asdict(begun.recipe)))
    TargetTrainer(dataclasses.replace(TARGET, total_tokens=256), tokenizer, corpus, tmp_path).run()
    assert json.loads((tmp_path / "recipe.json").read_text())["total_tokens"] == 2048


def test_training_leaves_a_model_that_transformers_loads(corpus_file, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = dataclasses.replace(TARGET, total_tokens=384)
    train_target(recipe, [corpus_file], [corpus_file], tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert model.dtype == torch.bfloat16 and model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
    assert model.generation_config.use_cache and model.config.use_cache
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["event"] == "finished"


@pytest.mark.parametrize("name", ["target", "small"])
def test_a_shipped_model_generates_with_a_cache(name):
    path = Path(__file__).parents[2] / f"yarn_drafters/embedded/{name}/generation_config.json"
    assert json.loads(path.read_text())["use_cache"] is True


def test_two_trainers_cannot_share_a_folder(corpus_file, tmp_path):
    import fcntl

    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="Another process is training"):
            train_target(TARGET, [corpus_file], [corpus_file], tmp_path)


def test_the_shipped_recipes_are_found_by_name():
    from longgraft.yarn_drafters.training.drafter import DrafterRecipe

    assert TargetRecipe.load(Path("embedded_target")).total_tokens == 18_000_000
    assert DrafterRecipe.load(Path("embedded_drafter")).stages == (Stage(2048),)
    with pytest.raises(ValueError, match=r"embedded_drafter, .*embedded_target"):
        TargetRecipe.load(Path("embedded_targets"))


def test_a_folder_of_another_run_is_refused(tokenizer, corpus, tmp_path):
    TargetTrainer(TARGET, tokenizer, corpus, tmp_path).save()
    with pytest.raises(ValueError, match="something else: layers 1, now 2"):
        TargetTrainer(dataclasses.replace(TARGET, layers=2), tokenizer, corpus, tmp_path).resume()


@pytest.mark.parametrize("schedule", [warmup_stable_decay, cosine])
def test_schedules_rise_to_one_and_end_at_zero(schedule):
    assert [schedule(at) for at in (0.0, 0.02, 1.0)] == pytest.approx([0.0, 1.0, 0.0])
