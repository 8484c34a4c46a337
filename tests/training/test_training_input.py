"""Mistakes in recipes, training files, folders and checkpoints are named before the first training step."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from toys.training import BLOCKS, DRAFTER, LONGSPEC, MEDUSA, TARGET, drafter_trainer, files_of_a_toy_run

from longgraft.cli import train as commands
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus, train_tokenizer
from longgraft.yarn_drafters.training.distributed import sole_trainer
from longgraft.yarn_drafters.training.documents import read_documents
from longgraft.yarn_drafters.training.drafter import DrafterRecipe, DrafterTrainer
from longgraft.yarn_drafters.training.fresh import head_shape
from longgraft.yarn_drafters.training.packages import main as collect_packages
from longgraft.yarn_drafters.training.recipe import Stage
from longgraft.yarn_drafters.training.streams import TokenStream
from longgraft.yarn_drafters.training.target import train_target

pytestmark = pytest.mark.usefixtures("one_thread")

INFINITE = float("inf")
TURN = '{"messages": [{"role": "user", "content": "x"}]%s}'
OF_A_TARGET = [({"kv_heads": 3}, "kv_heads 3"), ({"head_dim": 15}, "head_dim 15"), ({"tied": "yes"}, "tied is 'yes'")]
OF_A_DRAFTER = [
    ({"layerz": 3}, "sets 'layerz', which"),
    ({"total_tokens": "9m"}, "'9m'; it must be a whole number from 1"),
    ({"total_tokens": 10**400}, "total_tokens is 1000"),
    ({"total_tokens": 1.5}, "total_tokens is 1.5"),
    ({"total_tokens": 2}, "needs two steps"),
    ({"total_tokens": None}, "total_tokens is missing"),
    ({"muon_lr": 10**400}, "muon_lr is 1000"),
    ({"stages": []}, "Stages of no tokens"),
    ({"stages": 5}, "stages is 5; it must be a list"),
    ({"stages": [5]}, r"stages is \[5\]; it must be"),
    ({"stages": [{}]}, r"stages\[0\] does not set length"),
    ({"stages": [{"lenght": 9}]}, r"stages\[0\] sets 'lenght'"),
    ({"stages": [{"length": 48}]}, "use powers of two"),
    ({"stages": [{"length": 64, "share": 0}]}, "share is 0"),
    ({"stages": [{"length": 64, "grouped": 1}]}, "grouped is 1; it must be true or false"),
    ({"max_positions": 32}, "max_positions is 32. Raise"),
    ({"schedule": "linear"}, "schedule: 'linear' is unknown. Known: wsd, cosine"),
    ({"schedule": 1}, "schedule is 1"),
    ({"device": 0}, "device is 0; it must be text"),
    ({"bf16": "no"}, "bf16 is 'no'; it must be true or false"),
    ({"ttt_steps": 16}, "Rows of 16 tokens leave nothing to predict where ttt_steps takes 16"),
    ({"valid_length": 3}, "Rows of 3 tokens leave nothing"),
    ({"feature_layers": "a"}, "feature_layers is 'a'; it"),
    ({"feature_layers": [-1]}, r"feature_layers is \[-1\]"),
    ({"feature_layers": []}, "feature_layers is empty"),
    ({"rope": 5}, "rope is 5; it must be a table"),
    ({"rope": {"base": 0}}, "rope: base is 0"),
    ({"rope": {"kind": "x"}}, "rope: kind: 'x' is unknown"),
    ({"rope": {"theta": 1}}, "rope sets 'theta'"),
]


@pytest.mark.parametrize("recipe", (TARGET, DRAFTER, MEDUSA, BLOCKS, LONGSPEC), ids=lambda one: type(one).__name__)
def test_every_number_of_a_recipe_has_bounds_and_is_refused_beyond_them(recipe):
    kinds, found = get_type_hints(type(recipe), include_extras=True), 0
    for name, plain in get_type_hints(type(recipe)).items():
        if {int, float} & {plain, *get_args(plain)} and get_origin(plain) is not tuple:
            bounds: dict[str, float] = {}
            for kind in (kinds[name], *get_args(kinds[name])):
                for limit in getattr(kind, "__metadata__", ()):
                    bounds |= dataclasses.asdict(limit)
            below = bounds["gt"] if "gt" in bounds else bounds["ge"] - 1
            for wrong in (below, bounds.get("le", float("inf")) + 1, float("nan"), True):
                with pytest.raises(ValueError, match=f"^{name} is "):
                    dataclasses.replace(recipe, **{name: wrong})
            found += 1
    assert found > 15


@pytest.mark.parametrize(
    "recipe, given, message", [*((TARGET, *case) for case in OF_A_TARGET), *((DRAFTER, *case) for case in OF_A_DRAFTER)]
)
def test_a_recipe_s_wrong_value_is_named_with_what_is_needed(recipe, given, message, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(given))
    with pytest.raises(ValueError, match=message) as refused:
        type(recipe).load(path, recipe)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("r.json", b"{", "r.json is not JSON"),
        ("r.json", b"[1]", r"holds \[1\]; a table is needed"),
        ("r.json", b"[" * 10**5, "nested too deeply"),
        ("r.json", b"\xff", "cannot be read"),
        ("r.json", b"9" * 5000, "4300 digits"),
        ("r.toml", b"a = [", "is not TOML"),
        ("r.toml", b"stages = 3", "stages is 3; it must be a list"),
        ("none.toml", None, "does not exist"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        DrafterRecipe.load(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


def test_whole_floats_lists_and_full_shares_are_accepted():
    made = DrafterRecipe.load(
        None,
        DRAFTER,
        total_tokens=1e6,
        feature_layers=[1, 2, 3],
        stages=[{"length": 64}],
        warmup=1,
        decay=0,
        schedule="cosine",
        muon_lr=1,
    )
    assert (made.total_tokens, made.feature_layers, made.stages) == (1_000_000, (1, 2, 3), (Stage(64),))
    assert isinstance(made.total_tokens, int) and made.rate(0.5) == 0.5 and made.rate(1.0) == 1.0


@pytest.mark.parametrize(
    "has, asked, wanted",
    [
        ({"avx512_bf16"}, None, True),
        ({"amx_tile", "amx_bf16"}, None, True),
        ({"avx2", "avx512f"}, None, False),
        ({"avx512_bf16"}, False, False),
        (set(), True, True),
    ],
)
def test_products_are_in_bfloat16_on_processors_that_have_them_unless_asked_otherwise(has, asked, wanted, monkeypatch):
    monkeypatch.setattr("longgraft.yarn_drafters.training.recipe.features", lambda: has)
    with DrafterRecipe(bf16=asked).autocast(torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu") == wanted
    assert DrafterRecipe().in_bf16(torch.device("cuda"))


def test_data_without_an_answer_is_refused_and_says_what_it_has(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match=r"prompt .str.; text, or turns as messages"):
        list(read_documents([tmp_path / "rows.jsonl"]))
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with pytest.raises(ValueError, match="no chat template"):
        encode_corpus([tmp_path / "chat.jsonl"], train_tokenizer(["x"], 260), tmp_path / "c.npz")


@pytest.mark.parametrize(
    "row, message",
    [
        ("{", "is not JSON"),
        ("[" * 10**5, "nested too deeply"),
        ("9" * 5000, "4300 digits"),
        ("5", "is a int"),
        ('{"text": true}', "has text .bool."),
        ('{"text": 5}', "has text .int."),
        ("{}", "has nothing"),
        ('{"text": "a\\ud800b"}', "is half a character"),
        ('{"text": "x", "type": 5}', "type is 5; it must be text"),
        ('{"text": "x", "type": true}', "type is True"),
        ('{"text": "x", "source": ["a"]}', "source is"),
        ('{"text": "x", "source": "\\udc00"}', "is half a character"),
        ('{"messages": []}', "has messages .list."),
        ('{"messages": [5]}', "has messages .list."),
        ('{"messages": [{"role": "user"}]}', "turn 1 has no content; text, a list of text parts"),
        ('{"messages": [{"role": "user", "content": true}]}', "turn 1 has content of type bool; text, a list"),
        ('{"messages": [{"role": 1, "content": "x"}]}', "turn 1 has role, content, and no role that is text"),
        ('{"conversations": [{"from": "human"}]}', "turn 1 has no content"),
        ('{"conversations": [{"value": "x"}]}', "turn 1 has content, and no role that is text"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "is half a character"),
        ('{"text": "x", "messages": [{"role": "user", "content": "x"}]}', "has text and messages, and one of them"),
        ('{"text": "x", "ended": "no"}', "ended is 'no'; it must be true or false"),
        (TURN % ', "tools": [{"parameters": {}}]', "tools has no function with a name"),
        (TURN % ', "tools": ["find"]', "tools has no function with a name"),
        (TURN % ', "tools": "find"', "tools is not JSON"),
        (TURN % ', "images": ["a.png"]', "has images, which is not read"),
        (TURN % ', "system": 5', "system is 5"),
        (
            '{"messages": [{"role": "system", "content": "a"}], "system": "b"}',
            "has a system field and another system turn",
        ),
        ('{"messages": [{"role": "user", "content": "x", "weight": 1}]}', "turn 1 is to be learnt; only the"),
        ('{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}', "weight is 0.5; 0 or 1"),
        ('{"messages": [{"role": "user", "content": "x", "train_detail": [1]}]}', "has train_detail, which is not"),
        ('{"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}', "a call has no function with"),
        (TURN % ', "tools": [{"function": {"name": 5}}]', "tools has no function with a name"),
        ('{"conversations": [{"from": "function_call", "value": "find"}]}', "function_call. is not JSON"),
        ('{"conversations": [{"from": "function_call"}]}', "a call has no function with a name"),
    ],
)
def test_a_row_that_is_no_document_is_named_by_file_and_line(row, message, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine"}\n' + row + "\n")
    with pytest.raises(ValueError, match=message) as refused:
        list(read_documents([path]))
    assert f"{path}, line 2" in str(refused.value)


def fifo(path):
    os.mkfifo(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", b'{"text": "x"}\n\xff', "cannot be read beyond line"),
        ("a.jsonl.gz", b"plain", "beyond line 0"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}' * 99, mtime=0)[:-9], "cannot be read beyond line"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", "cannot be read beyond line 0"),
        ("a.json", b"5", "holds a int; a list of rows"),
        ("a.json", b'{"text": "x"}', "holds a dict; a list of rows"),
        ("a.json", b"[5]", "a.json, item 1 is a int"),
        ("a.json", b"[" * 10**5, "nested too deeply"),
        ("a.json", b"\xff", "not UTF-8 at byte 0"),
        ("a.bin", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("a.txt", fifo, "neither a file nor a folder"),
        ("a.txt", None, "neither a file nor a folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, message, tmp_path):
    path = tmp_path / name
    if callable(content):
        content(path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        list(read_documents([path]))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "files", [{}, {"a.txt": ""}, {"a.jsonl": "\n\n"}, {"a.jsonl": '{"text": ""}\n'}, {"a.json": "[]"}]
)
def test_files_without_a_token_are_refused(files, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match="data: nothing to learn from"):
        encode_corpus([folder], train_tokenizer(["x"], 260), tmp_path / "c.npz")
    assert not (tmp_path / "c.npz").exists()


def test_a_damaged_cache_is_made_again(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    tokenizer, cache = train_tokenizer(["some text"], 260), tmp_path / "c.npz"
    tokens = encode_corpus([tmp_path / "a.txt"], tokenizer, cache).tokens
    whole = cache.read_bytes()
    for spoilt in (b"", b"no zip", whole[:-50], whole[:200]):
        cache.write_bytes(spoilt)
        assert np.array_equal(encode_corpus([tmp_path / "a.txt"], tokenizer, cache).tokens, tokens)
        assert cache.read_bytes() == whole


def corpus(tokens, types=("text",)) -> EncodedCorpus:
    return EncodedCorpus(np.arange(tokens, dtype=np.int32) % 40, np.array([0, *[tokens] * len(types)]), types, types)


def test_data_shorter_than_a_row_is_refused(tmp_path):
    """A row would repeat the same few tokens, and a row of no tokens would never be full."""
    with pytest.raises(ValueError, match="hold 64 tokens, and a row takes 65"):
        drafter_trainer(corpus(64), tmp_path)
    drafter_trainer(corpus(65), tmp_path)
    with pytest.raises(ValueError, match="hold no tokens to read, or prose_share leaves none"):
        TokenStream(corpus(0), 0, lambda c, _: np.arange(1)).rows(0, 1, 16)


def test_an_empty_validation_file_is_refused_before_the_first_step(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    for train in (
        lambda out: DrafterTrainer.train(DRAFTER, target, [text], [tmp_path / "empty.jsonl"], out),
        lambda out: train_target(TARGET, [text], [tmp_path / "empty.jsonl"], out),
    ):
        with pytest.raises(ValueError, match=r"empty\.jsonl: nothing to learn from"):
            train(tmp_path / "out")
        assert not (tmp_path / "out" / "log.jsonl").exists()


def test_an_unusable_folder_for_a_run_is_refused_before_the_model_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    for out, said in [
        ("file", "cannot be a run's folder"),
        ("file/in", "cannot be a run's folder"),
        ("full", "holds files that are not of a training run, such as thesis.txt"),
    ]:
        with pytest.raises(ValueError, match=said):
            DrafterTrainer.train(DRAFTER, tmp_path / "no model", [], [], tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "file", tmp_path / "full", tmp_path / "full" / "thesis.txt"]
    for _ in range(2):  # its own folder is accepted again
        with sole_trainer(tmp_path / "new"):
            (tmp_path / "new" / "head").mkdir(exist_ok=True)


def spoil(change):
    def spoilt(path):
        saved = torch.load(path, weights_only=True)
        change(saved)
        torch.save(saved, path)

    return spoilt


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no checkpoint"),
        lambda path: path.write_bytes(path.read_bytes()[:2000]),
        lambda path: torch.save([1], path),
        lambda path: torch.save({"path": Path("x")}, path),
        spoil(lambda s: s.pop("module")),
        spoil(lambda s: s.pop("state")),
        spoil(lambda s: s.pop("optimizers")),
        spoil(lambda s: s["module"].pop("fc.weight")),
        spoil(lambda s: s["module"]["fc.weight"].fill_(float("nan"))),
        spoil(lambda s: s["module"].update({"fc.weight": torch.ones(2)})),
        spoil(lambda s: s["optimizers"].pop()),
        spoil(lambda s: s["state"].update(tokens="many")),
        spoil(lambda s: s["state"].update(tokens=-1)),
        spoil(lambda s: s["state"].update(elapsed=float("nan"))),
        spoil(lambda s: s["state"].update(more=1)),
        spoil(lambda s: s["state"].update(cursors={})),
        spoil(lambda s: s.update(identity=5)),
    ],
)
def test_a_damaged_checkpoint_is_named_with_what_to_do(spoilt, tmp_path):
    drafter_trainer(corpus(200), tmp_path).save()
    spoilt(tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be resumed .*\nDelete it to start again"):
        drafter_trainer(corpus(200), tmp_path).resume()


def test_a_training_that_diverges_is_ended_with_an_error(tmp_path):
    run = drafter_trainer(corpus(200), tmp_path)
    with torch.no_grad():
        run.network.fc.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match="gradient's norm is nan at step 0: the training diverged"):
        run.step()


@pytest.mark.parametrize(
    ("own", "added", "said"),
    [
        (400, 0, "The tokenizer has 400 tokens and .* predicts 300"),
        (300, 9, r"gives token \d+ in the training files, and the model has 300"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(own, added, said, tmp_path):
    """Added tokens matter only if the training files have them."""
    target, text = files_of_a_toy_run(tmp_path)
    words = " ".join(f"{a}{b}{a}" for a in "abcdefghijklm" for b in "nopqrstuvwxyz")
    text.write_text(json.dumps({"text": words + "".join(f" <{n}>" for n in range(added))}))
    tokenizer = train_tokenizer([words], own)
    tokenizer.add_tokens([f"<{n}>" for n in range(added)])
    tokenizer.save_pretrained(target)
    with pytest.raises(ValueError, match=said):
        DrafterTrainer.train(DRAFTER, target, [text], [], tmp_path / "out")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 3}, "heads is 3, kv_heads 2 and head_dim 8"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"intermediate": None}, r"intermediate, which the recipe does not set, of toy's config is \[48, 64\]"),
        ({"kv_heads": None, "heads": None}, "heads, which the recipe does not set, of toy's config is missing"),
    ],
)
def test_a_head_s_shape_must_be_consistent(change, message):
    config = SimpleNamespace(hidden_size=32, num_hidden_layers=4, intermediate_size=[48, 64])  # as Gemma 3n's is
    with pytest.raises(ValueError, match=message):
        head_shape(dataclasses.replace(DRAFTER, **change), SimpleNamespace(config=config, name="toy", vocab_size=96))


def test_packages_say_what_they_leave_out(tmp_path, capsys):
    source = "".join(f"def f{'x' * n}(a, b):\n    return a + b\n" for n in range(40))
    for name, licence in (("free-1.whl", "MIT"), ("closed-1.whl", "Proprietary")):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr("m.dist-info/METADATA", f"License-Expression: {licence}\n")
            wheel.writestr("m/good.py", source)
            wheel.writestr("m/latin.py", f"# caf\xe9\n{source}b".encode("latin-1"))
    collect_packages([*(str(path) for path in tmp_path.glob("*.whl")), "--out", str(tmp_path / "rows.jsonl.gz")])
    with gzip.open(tmp_path / "rows.jsonl.gz", "rt") as rows:
        assert [json.loads(row)["text"] for row in rows] == [source]
    assert capsys.readouterr().err == "closed-1.whl: left out, no permissive licence was found\n"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(SystemExit):
        collect_packages(
            [str(tmp_path / "free-1.whl"), "--evaluation", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "o")]
        )
    assert "line 1 has neither context nor input" in capsys.readouterr().err


def test_packages_are_collected_into_a_new_file_only(tmp_path, capsys):
    (tmp_path / "a.whl").write_bytes(b"no wheel")
    (tmp_path / "there.gz").write_bytes(b"kept")
    (tmp_path / "rows.jsonl").write_text("5\n")
    new = ["--out", tmp_path / "new.gz"]
    for more, said in [
        (["--out", tmp_path / "there.gz"], "exists already"),
        (new, "a.whl is neither a wheel nor a"),
        ([*new, "--evaluation", tmp_path / "rows.jsonl"], "line 1: one JSON object is needed"),
    ]:
        with pytest.raises(SystemExit) as ended:
            collect_packages([str(tmp_path / "a.whl"), *map(str, more)])
        assert ended.value.code == 2 and said in capsys.readouterr().err
    assert (tmp_path / "there.gz").read_bytes() == b"kept" and not (tmp_path / "new.gz").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        *(
            ({"tokens": text}, "is no number")
            for text in ("inf", "nan", "-5", "0", "", "k", "64kk", "1e400", "9999999b")
        ),
        *(({"learning_rate": rate}, "--learning-rate is") for rate in (0.0, -1.0, INFINITE, float("nan"), 20.0)),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"data": [Path("nowhere")]}, "nowhere does not exist"),
        ({"valid": [Path("nowhere")]}, "nowhere does not exist"),
        ({"recipe": Path("nowhere")}, "JSON file, or one of"),
    ],
)
def test_options_of_a_training_are_refused_before_anything_is_made(options, message, tmp_path):
    command = next(made.callback for made in commands.train.registered_commands if made.name == "drafter")
    with pytest.raises(ValueError, match=message):
        command(**{"data": [tmp_path], "out": tmp_path / "out", "model": str(tmp_path)} | options)
    assert not (tmp_path / "out").exists()
