"""Corpora are kept by name between runs; passages that match the end of the text are read when it gets there."""

from __future__ import annotations

import gzip
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from toys.commands import run
from toys.models import toy_target
from toys.served import asking, characters, text_session
from toys.sessions import answered, toy_prompt, toy_session

import longgraft
from longgraft.corpora import PASSAGE, PASSAGES, VERSION, Corpus, changing, corpus_path, tokens_in
from longgraft.files.identified_file import save_identified
from longgraft.memories.continuations import ORDERS
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.assembly import load_needs
from longgraft.methods.find import find
from longgraft.methods.needs import Sources
from longgraft.protocol.observation import Observation
from longgraft.runtime.fingerprint import vocabulary
from longgraft.trees.tree import ProposalTree

IDENTITY = {"tokenizer": "mine"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(memory: PartialMatching, *prompt: int) -> list[int]:
    """Lets the memory observe a prompt, and returns the tokens that it then expects, most probable first."""
    memory.observe(
        Observation(
            ProposalTree.chain(torch.tensor(prompt[:-1])), torch.arange(len(prompt) - 1), prompt[-1], prompt=True
        )
    )
    return expected(memory)


def expected(memory: PartialMatching) -> list[int]:
    return [one.token for one in sorted(memory.known().after(())[0], key=lambda one: -one.probability)]


def test_places_are_sorted_by_more_tokens_than_a_lookup_reads():
    text = np.random.default_rng(1).integers(0, 2, 400)
    text[100:160] = text[200:260] = 1
    order = Corpus.build(text).order.tolist()
    ranked = [text[at : at + 32].tolist() for at in order]
    assert ranked == sorted(ranked) and sorted(order) == list(range(400))


def test_passages_follow_the_longest_match_and_are_spread_over_its_places():
    many = Corpus.build(np.array([token for n in range(9) for token in (1, 2, 10 + n)]))
    assert [one[:3] for one in many.passages([1, 2], ORDERS)] == [[1, 2, 10 + n] for n in (0, 2, 4, 6)]
    assert PASSAGES == 4
    assert [one[:4] for one in many.passages([10, 1, 2], ORDERS)] == [[10, 1, 2, 11]]
    assert len(many.passages([1], (1, 2))) == PASSAGES and many.passages([1], (2, 3)) == []
    assert many.passages([30], ORDERS) == many.passages([], ORDERS) == []
    assert len(Corpus.build(np.arange(500)).passages([7], ORDERS)[0]) == 1 + PASSAGE


def test_a_corpus_is_read_if_it_has_a_longer_context_than_the_text():
    corpus, memory = Corpus.build(np.array([5, 6, 7, 8, 9, 5, 6, 1])), PartialMatching()
    assert read(memory, 4, 6) == []
    memory.reset(0)
    memory.observe_corpus(corpus)
    assert set(read(memory, 4, 6)) == {7, 1} and not memory.text[2:]
    assert read(memory, 6, 7) == [8]  # from the passage that was read before
    memory.reset(0)
    assert read(memory, 4, 6) == []


def test_a_corpus_is_searched_for_longer_contexts_than_the_text_has(monkeypatch):
    searched = []
    passages = Corpus.passages

    def recorded(corpus, text, orders):
        searched.append(list(orders))
        return passages(corpus, text, searched[-1])

    monkeypatch.setattr(Corpus, "passages", recorded)
    memory = PartialMatching()
    memory.observe_corpus(Corpus.build(np.array([5, 6, 7, 8, 9, 5, 6, 1])))
    assert read(memory, 6, 3, 6) == [3]
    assert min(searched[-1]) == 2


@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 3}])
def test_answers_with_a_corpus_equal_plain_decoding_in_fewer_steps(sampled):
    ids, sampling = toy_prompt(40), longgraft.engine.session.Sampling(**sampled)
    plain = answered(toy_session("ar"), ids, 40, sampling)
    session = toy_session("graft-x-text")
    alone = answered(session, ids, 40, sampling)
    Corpus.build(np.array(plain.token_ids + ids)).save(corpus_path("ours"), {"tokenizer": vocabulary(None)})
    session.default_corpus = "ours"
    helped = answered(session, ids, 40, sampling)
    assert plain.token_ids == alone.token_ids == helped.token_ids
    assert helped.stats.steps < alone.stats.steps


def test_a_corpus_of_another_tokenizer_or_half_a_file_is_refused(tmp_path):
    path = tmp_path / "ours.safetensors"
    made = Corpus.build(np.array([5, 6, 7]))
    made.save(path, IDENTITY)
    found = Corpus.load(path, IDENTITY)
    assert found.tokens.tolist() == [5, 6, 7] and found.order.tolist() == made.order.tolist()
    with pytest.raises(ValueError, match=r"belongs to tokenizer 'mine', and 'theirs' is loaded. Remove it"):
        Corpus.load(path, {"tokenizer": "theirs"})
    made.save(path, IDENTITY | {"model": "ours"})
    with pytest.raises(ValueError, match=r"made for model 'ours', and 'yours' has another tokenizer. Remove it"):
        Corpus.load(path, {"tokenizer": "theirs", "model": "yours"})
    made.save(path, IDENTITY)
    with pytest.raises(ValueError, match=r"made for a model that it does not name, and 'yours' has another tokenizer"):
        Corpus.load(path, {"tokenizer": "theirs", "model": "yours"})
    made.save(path, IDENTITY | {"model": "ours"})
    assert Corpus.load(path, IDENTITY | {"model": "the same by another name"}).tokens.tolist() == [5, 6, 7]
    replace(made, order=made.order[:2]).save(path, IDENTITY)
    with pytest.raises(ValueError, match=r"'ours' holds tokens torch.int32 \[3\] and order torch.int32 \[2\]"):
        Corpus.load(path, IDENTITY)
    made.save(path, IDENTITY)
    path.write_bytes(path.read_bytes()[:-4])
    for broken in (path, tmp_path / "none"):
        with pytest.raises(ValueError, match=f"Corpus '{broken.stem}' cannot be read"):
            Corpus.load(broken, IDENTITY)
    with pytest.raises(ValueError, match="The text has 0 tokens"):
        Corpus.build(np.array([], dtype=np.int64))


@pytest.mark.parametrize(
    "tokens",
    [
        torch.zeros(0, dtype=torch.int32),
        torch.tensor(5, dtype=torch.int32),
        torch.zeros(3, 1, dtype=torch.int32),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.int64),
    ],
    ids=str,
)
def test_a_crafted_corpus_is_refused_in_one_sentence(tokens, tmp_path):
    path = tmp_path / "ours.safetensors"
    save_identified(path, {"tokens": tokens, "order": tokens.clone()}, {"version": VERSION}, IDENTITY)
    with pytest.raises(ValueError, match=r"^Corpus 'ours' holds tokens .*; two of \[N\] int32 are needed\. Remove it"):
        Corpus.load(path, IDENTITY)
    assert tokens_in(path) == (len(tokens) if tokens.ndim else None)  # `longgraft corpus` lists damaged ones, too


def test_an_identity_of_200_000_brackets_is_refused(tmp_path):
    path = tmp_path / "ours.safetensors"
    for identity in ("[" * 200_000, "[]", "5"):
        save_file({"tokens": torch.zeros(1)}, path, {"version": VERSION, "identity": identity})
        with pytest.raises(ValueError, match=r"^Corpus 'ours' cannot be read: its identity.* Remove it"):
            Corpus.load(path, IDENTITY)


def test_files_are_added_kept_listed_and_removed(tmp_path, capsys, monkeypatch):
    from longgraft.methods.needs import embedded
    from longgraft.models.weights import read_tokenizer

    (tmp_path / "code").mkdir()
    for name, text in (("a.py", "import numpy"), ("b.md", "# Words"), ("c.bin", "\0")):
        (tmp_path / "code" / name).write_text(text)
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as rows:
        rows.write(json.dumps({"text": "import torch"}) + "\n")
    tokenizer = read_tokenizer(str(embedded("target")), "embedded")
    end, sources = (
        tokenizer.eos_token,
        Sources(replace(toy_target(), name="embedded"), given={"datastore": "ours"}, tokenizer=tokenizer),
    )

    monkeypatch.setattr(type(sources.target), "vocab_size", len(tokenizer))

    def text() -> str:
        return tokenizer.decode(load_needs(find("rest"), sources)[1]["datastore"].tokens.tolist())

    assert "no corpus in" in run(capsys, monkeypatch, "corpus")[1]
    assert run(capsys, monkeypatch, "corpus", "add", "ours", tmp_path / "rows.jsonl.gz")[0] == 0
    assert text() == f"import torch{end}"
    code, out, err = run(capsys, monkeypatch, "corpus", "add", "ours", tmp_path / "code", "--endings", ".py,.md")
    assert err == ""  # no bars: stderr is no terminal
    assert text() == f"import torch{end}import numpy{end}# Words{end}" and code == 0 and "are kept in" in out
    run(capsys, monkeypatch, "corpus", "add", "ours", tmp_path / "code" / "a.py", "--most", 5)
    assert text().endswith(f"import numpy{end}") and len(load_needs(find("rest"), sources)[1]["datastore"].tokens) == 5
    (corpus_path("bad")).write_bytes(b"not one")
    (corpus_path("bad").parent / "no name.safetensors").write_bytes(b"")
    assert run(capsys, monkeypatch, "corpus")[1].split()[:5] == ["bad", "damaged", "0.0", "MB", "ours"]
    corpus_path("bad").unlink()
    assert run(capsys, monkeypatch, "corpus")[1].split()[:3] == ["ours", "5", "tokens"]
    nothing = run(capsys, monkeypatch, "corpus", "add", "ours", tmp_path / "code", "--endings", ".zig")
    assert nothing[0] != 0 and "no text to add with these endings" in nothing[2]
    with pytest.raises(ValueError, match="was made for model 'embedded', and 'embedded' has another tokenizer"):
        load_needs(find("rest"), replace(sources, tokenizer=None))
    assert run(capsys, monkeypatch, "corpus", "remove", "ours")[0] == 0
    assert "There is no corpus 'ours'; known: none. Make it:" in run(capsys, monkeypatch, "corpus", "remove", "ours")[2]


def test_files_of_a_folder_that_are_no_text_or_excluded_are_left_out_and_counted(tmp_path, capsys, monkeypatch):
    files = {
        "a.py": b"import numpy",
        "b.bin": b"\x89PNG\r\n",
        "c.dat": b"\0\0",
        "d.json": b'{"name": "package"}',
        "e.jsonl.gz": b"cut",
        "vendor/f.py": b"import torch",
        "sub/g.csv": b"1,2",
        ".git/index": b"DIRC",
    }
    folder = tmp_path / "code"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (tmp_path / "first.txt").write_text("import numpy")
    asked = ["corpus", "add", "ours", tmp_path / "first.txt", folder, "--exclude", "vendor/*", "--exclude", "g.csv"]
    code, out, err = run(capsys, monkeypatch, *asked)
    assert (code, out.split()[:2]) == (0, ["ours:", "6"])
    assert err.startswith("left out by --exclude: 2\nleft out because they are no text: 4\n")
    assert [name for name in files if f"{folder / name}" in err] == ["b.bin", "c.dat", "d.json", "e.jsonl.gz"]
    for n in range(9):
        (folder / f"z{n}.bin").write_bytes(b"\xff")
    code, _, err = run(capsys, monkeypatch, "corpus", "add", "others", folder, "--endings", ".bin")
    assert code == 2
    assert "no text to add with these endings" in err
    assert err.splitlines()[1::9] == ["left out because they are no text: 10", "and 2 more"]
    assert run(capsys, monkeypatch, "corpus", "add", "ours", folder / "b.bin")[0] == 2


@pytest.mark.parametrize("name", ["../ours", "a/b", "", ".ours", "-x", "a b", "n" * 101])
def test_a_corpus_cannot_be_named_by_a_path(name):
    with pytest.raises(ValueError, match="is no name of a corpus"):
        corpus_path(name)


def test_a_session_or_a_request_names_a_corpus():
    Corpus.build(np.array([5, 6, 7])).save(corpus_path("ours"), {"tokenizer": vocabulary(None)})
    model = toy_session("graft-x-text").target.model
    session = longgraft.load((model, None), None, tell=False, corpus="ours")
    assert "corpus ours: 3 tokens may be repeated" in session.about
    text = next(memory for memory in session.engine.proposer.memories if memory.reads_corpora)

    def read() -> list[list[int]]:
        with session.open([1, 2], 4) as request:  # which names no corpus
            request.step()
            return [one.tokens.tolist() for one in text._corpora]

    assert read() == [[5, 6, 7]] and session.corpus("ours") is session.corpus("ours")
    Corpus.build(np.array([8])).save(corpus_path("ours"), {"tokenizer": vocabulary(None)})
    assert read() == [[8]]  # the changed corpus is read
    Corpus.build(np.array([10**6, 1])).save(corpus_path("ours"), {"tokenizer": vocabulary(None)})
    with pytest.raises(ValueError, match="Corpus 'ours' has token ids from 1 to 1000000"):
        session.corpus("ours")
    with pytest.raises(ValueError, match="There is no corpus 'theirs'; known: ours"):
        session.generate([1, 2], 4, corpus="theirs")
    with pytest.raises(ValueError, match="method pld reads none"):
        longgraft.load((model, None), None, tell=False, corpus="ours", method="pld")


def test_rewound_memory_keeps_its_corpora():
    memory = PartialMatching()
    memory.reset(64)
    memory.observe_corpus(Corpus.build(np.array([1, 2, 3, 50, 51, 52])))
    found = read(memory, 9, 3, 50, 51)
    memory.rewind(memory.mark())
    assert found[:1] == [52] and expected(memory) == found


def test_an_answer_that_read_a_corpus_is_compared_with_plain_decoding_that_reads_none():
    Corpus.build(np.array(toy_prompt(90))).save(corpus_path("ours"), {"tokenizer": vocabulary(characters())})
    asked = {"prompt": "a few words, a few words", "max_tokens": 8, "compare": True, "longgraft": {"corpus": "ours"}}
    told = asking(lambda http: http.post("/watch", json=asked), text_session(method="graft-x-text")).text
    assert "event: compared" in told and '"identical":true' in told.replace(" ", "")


def test_files_that_threads_add_at_once_are_all_kept(tmp_path):
    path = tmp_path / "ours.safetensors"
    Corpus.build(np.array([1])).save(path, IDENTITY)

    def add(token: int) -> None:
        with changing(path):
            known = Corpus.load(path, IDENTITY).tokens
            time.sleep(0.01)
            Corpus.build(np.append(known, token)).save(path, IDENTITY)

    threads = [threading.Thread(target=add, args=(token,)) for token in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Corpus.load(path, IDENTITY).tokens.tolist()) == list(range(1, 8))
    with pytest.raises(ValueError, match=r"cannot be written: .* Make room"):
        Corpus.build(np.array([1])).save(path / "theirs.safetensors", IDENTITY)
