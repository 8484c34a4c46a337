"""On-policy training chats: sampling of many at once, and the files of `longgraft train regenerate`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toys.commands import run
from toys.models import toy_model
from toys.training import tiny_target
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from longgraft import load
from longgraft.yarn_drafters.training import batched_sampling, scheduled_sampling
from longgraft.yarn_drafters.training.corpus import encode_corpus, split_coded
from longgraft.yarn_drafters.training.documents import Document
from longgraft.yarn_drafters.training.regenerate import Regenerator, regenerate
from longgraft.yarn_drafters.training.sampled_chats import ChatSampling, Own, PromptSources, requests_of
from longgraft.yarn_drafters.training.turns import PromptTurn, SampledTurn

pytestmark = pytest.mark.usefixtures("one_thread")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SAMPLING = ChatSampling(batch=4, most=12, follow_up=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_target(folder, [f"<user>What is {i} plus two?\n<assistant>{i + 2}, I think.\n" for i in range(30)])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def session(folder):
    return load(folder, None, tell=False, method="ar", device="cpu", dtype="float32", attention="sdpa")


def worker(session, sampling=SAMPLING, excluded=()) -> Regenerator:
    return Regenerator(session, sampling, excluded)


def with_tokenizer(session, tokenizer):
    return load((session.target.model, tokenizer), None, tell=False, method="ar", device="cpu")


def by_scheduler(session, more, ends, batch):
    session.eos = tuple(ends)
    return scheduled_sampling.sample(session, more, batch)


def in_padded_batch(session, more, ends, batch):
    return batched_sampling.sample(session.target.model, more, ends, batch)


SAMPLERS = pytest.mark.parametrize("sample", [by_scheduler, in_padded_batch])


def sampled(sample, session, turns: list[PromptTurn], ends, batch=64) -> list[SampledTurn]:
    """Returns what was sampled for each turn; the turns are handed out on demand."""
    left, usual = iter(turns), session.eos
    found = dict(sample(session, lambda count: islice(left, count), ends, batch))
    session.eos = usual
    assert len(found) == len(turns)
    return [found[turn] for turn in turns]


PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [11], [30, 31, 32, 33]]


@pytest.mark.one_in(2)
@SAMPLERS
@pytest.mark.parametrize("layers", [["full_attention"] * 4, ["sliding_attention", "full_attention"] * 2])
def test_greedy_rows_of_a_batch_equal_the_answers_of_transformers(sample, layers, folder):
    """Includes rows that end early and leave their place in the cache to others."""
    config = AutoConfig.from_pretrained(folder)
    config.use_sliding_window, config.sliding_window, config.layer_types = True, 6, layers
    config.initializer_range, config.tie_word_embeddings = 0.3, False  # answers depend on the whole context
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.set_attn_implementation("sdpa")
    alone = [
        model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=299)[
            0, len(prompt) :
        ].tolist()
        for prompt in PROMPTS
    ]
    ends = {alone[1][3], alone[3][8]}
    cuts = [next((i for i, token in enumerate(tokens) if token in ends), None) for tokens in alone]
    assert len(set(cuts)) > 2 and all(len(set(tokens)) > 3 for tokens in alone)
    session = load((model, None), None, tell=False, method="ar", device="cpu")
    wanted = [SampledTurn(tokens[:cut], cut is not None) for tokens, cut in zip(alone, cuts, strict=True)]
    for batch in (4, 2, 1):
        turns = [PromptTurn(prompt, (0,), 0.0, 20) for prompt in PROMPTS]
        assert sampled(sample, session, turns, sorted(ends), batch) == wanted


@pytest.mark.one_in(2)
@SAMPLERS
def test_a_row_is_drawn_by_its_own_seed_and_follows_the_models_distribution(sample, session):
    rows = 400
    together = sampled(sample, session, [PromptTurn(PROMPTS[0], (7, i), 1.0, 1) for i in range(rows)], [299], rows)
    alone = sampled(sample, session, [PromptTurn(PROMPTS[0], (7, 5), 1.0, 1)], [299])
    assert together[5] == alone[0]
    logits = session.target.model(torch.tensor(PROMPTS[:1])).logits[0, -1]
    shares = logits.softmax(-1)
    first = [found.tokens[0] if found.tokens else 299 for found in together]
    counts = torch.bincount(torch.tensor(first), minlength=len(shares)) / rows
    best = shares.topk(40).indices
    assert abs(counts[best].sum() - shares[best].sum()) < 0.1 and (counts > 0).sum() > 100


@pytest.mark.parametrize("family, own", [("qwen3", True), ("gemma3", True), ("gemma2", False), ("lfm2", False)])
def test_a_padded_batch_is_only_for_models_whose_attention_it_computes(family, own):
    """Gemma 2 caps its scores, and LFM2 keeps states beside keys and values."""
    assert batched_sampling.computes(toy_model(family)) == own


def test_models_with_sinks_are_not_sampled_in_a_padded_batch():
    model = torch.nn.Module()
    model.config = AutoConfig.for_model("qwen3")
    model.attention = torch.nn.Module()
    assert batched_sampling.computes(model)
    model.attention.sinks = torch.nn.Parameter(torch.zeros(2))
    assert not batched_sampling.computes(model)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_only_requests_that_a_model_invents_or_gets_of_documents_have_a_second_one():
    texts = [Document("x" * 500 + "\n"), Document("y" * 500 + "\n")]
    always, never = replace(SAMPLING, follow_up=1.0), replace(SAMPLING, follow_up=0.0)
    both = PromptSources(texts, texts, magpie=True)
    for chat in islice(requests_of(both, always), 12):
        assert (chat.plan[2:] == [Own.REQUEST, Own.ANSWER]) == (chat.source != "given")
        assert chat.plan[1] is Own.ANSWER and (chat.plan[0] is Own.REQUEST) == (chat.source == "magpie")
    assert all(len(chat.plan) == 2 for chat in islice(requests_of(both, never), 12))


def test_each_given_chat_is_answered_once_in_an_order_of_the_seed():
    texts = [Document(f"What is {i}?") for i in range(9)]
    orders = [
        [chat.plan[0]["content"] for chat in requests_of(PromptSources(texts), replace(SAMPLING, seed=seed))]
        for seed in (0, 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(text.text for text in texts)
    assert orders[0] != orders[1] and orders[0] != [text.text for text in texts]


def test_given_chats_have_the_temperatures_of_files_that_an_earlier_version_began():
    texts = [Document(f"What is {i}?") for i in range(8)]
    chats = list(requests_of(PromptSources(texts), SAMPLING))
    assert [int(chat.plan[0]["content"][8]) for chat in chats] == [1, 3, 7, 6, 0, 4, 2, 5]
    assert [chat.temperature for chat in chats] == [0.0, 0.0, 0.7, 0.7, 1.0, 0.0, 0.0, 0.0]


def test_kinds_of_sources_alternate_and_given_chats_run_out():
    texts = [Document("x" * 500 + "\n")]
    kinds = [chat.source for chat in islice(requests_of(PromptSources(texts, texts, magpie=True), SAMPLING), 6)]
    assert kinds == ["given", "documents", "magpie", "documents", "magpie", "documents"]


def test_a_resumed_run_drops_requests_that_it_has_answered(session, tmp_path):
    out = tmp_path / "chats.jsonl"
    texts = [Document(f"What is {i}?") for i in range(12)]
    sampling = replace(SAMPLING, tokens=10**6)
    kept = worker(session, sampling).run(requests_of(PromptSources(texts), sampling), out)["kept"]
    answered = rows_of(out)
    chats = (replace(chat, index=chat.index + 100) for chat in requests_of(PromptSources(texts), sampling))
    again = worker(session, sampling).run(chats, out)
    assert again["repeated"] > 0 and len({row["messages"][0]["content"] for row in rows_of(out)}) == len(rows_of(out))
    assert kept == len(answered) > 0 and rows_of(out)[:kept] == answered


def test_long_prompts_are_read_in_several_passes(session, monkeypatch):
    monkeypatch.setattr(batched_sampling, "PROMPT_TOKENS", 14)
    read, begin = [], batched_sampling._Sampler.begin
    monkeypatch.setattr(
        batched_sampling._Sampler,
        "begin",
        lambda self, turns: read.append([len(turn.prompt) for turn in turns]) or begin(self, turns),
    )
    sampled(in_padded_batch, session, [PromptTurn(prompt, (0,), 0.0, 3) for prompt in PROMPTS], [299])
    assert read == [[4, 7], [1, 3]]


@pytest.mark.slow
def test_an_interrupted_run_samples_the_chats_that_are_missing(session, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    texts = [Document(f"What is {i}?") for i in range(48)]
    counts = worker(session).run(requests_of(PromptSources(texts), SAMPLING), whole)
    assert counts["kept"] == len(rows_of(whole)) > 8
    judged, judge = [], Regenerator._judge

    def failing(self, chat):
        judged.append(chat.index)
        if len(judged) == 20:
            raise KeyboardInterrupt
        judge(self, chat)

    monkeypatch.setattr(Regenerator, "_judge", failing)
    with pytest.raises(KeyboardInterrupt):
        worker(session).run(requests_of(PromptSources(texts), SAMPLING), broken)
    with open(broken, "ab") as file:
        file.write(b'{"half a line')
    assert worker(session).run(requests_of(PromptSources(texts), SAMPLING), broken) == counts
    assert len(judged) == 49 and set(judged[20:]).isdisjoint(judged[:19])
    assert sorted(broken.read_bytes().splitlines()) == sorted(whole.read_bytes().splitlines())


@pytest.mark.parametrize(
    "name, sampling, said",
    [
        ("other", SAMPLING, "model 'own', now 'other'"),
        ("own", replace(SAMPLING, seed=3), "seed 0, now 3"),
        ("own", replace(SAMPLING, longest=500), "excerpt 6000, now 500"),
        ("own", replace(SAMPLING, temperatures=(1.0,)), r"temperatures \[0.0, 0.7, 1.0\], now \[1.0\]"),
    ],
)
def test_a_file_of_other_settings_is_not_gone_on_with(session, tmp_path, monkeypatch, name, sampling, said):
    sources, out = PromptSources([Document(f"What is {i}?") for i in range(2)]), tmp_path / "c.jsonl"

    def sampled_by(name, sampling):
        monkeypatch.setattr(session.target, "name", name)
        return worker(session, sampling).run(requests_of(sources, sampling), out)

    first = sampled_by("own", SAMPLING)
    content = out.read_bytes()
    with pytest.raises(ValueError, match=rf"was sampled with other settings: {said}\.\nGive another --out"):
        sampled_by(name, sampling)
    assert out.read_bytes() == content
    assert sampled_by("own", replace(SAMPLING, tokens=2 * SAMPLING.tokens, batch=1)) == first


def answering(
    monkeypatch, tokenizer, answers: dict[str, tuple[str, bool]], asked: list[PromptTurn] | None = None
) -> None:
    """Answers a prompt that contains one of these texts with its answer, every other one with "Fine.".

    asked: receives the turns
    """

    def sampled(session, more, batch):
        while turns := list(more(batch)):
            for turn in turns:
                if asked is not None:
                    asked.append(turn)
                text = tokenizer.decode(turn.prompt)
                said, ended = next((a for part, a in answers.items() if part in text), ("Fine.", True))
                yield turn, SampledTurn(tokenizer(said)["input_ids"], ended)

    monkeypatch.setattr(scheduled_sampling, "sample", sampled)


def test_loops_repeats_and_excluded_requests_are_dropped_and_counted(session, tmp_path, monkeypatch):
    sampling = ChatSampling(tokens=10**6, batch=1, follow_up=0.0)
    known = "who was the first person that walked on the moon"
    given = [Document(text) for text in ("One?", "Two?", " one? ", f"Tell me, {known}?", "Three?")]
    made = worker(session, sampling, [f"Yes: {known}, and when?"])
    answering(monkeypatch, made.tokenizer, {"Two?": ("again " * 60, False), "Three?": (" ", True)})
    counts = made.run(requests_of(PromptSources(given), sampling), tmp_path / "c.jsonl")
    assert {k: v for k, v in counts.items() if k != "tokens"} == {
        "kept": 1,
        "loops": 1,
        "repeated": 1,
        "excluded": 1,
        "empty": 1,
    }
    (row,) = rows_of(tmp_path / "c.jsonl")
    assert row["messages"][1] == {"role": "assistant", "content": "Fine."} and row["source"] == "given"


def test_the_marks_of_a_thought_are_kept_where_they_are_special_tokens(folder, session, tmp_path, monkeypatch):
    sampling = ChatSampling(tokens=10**6, batch=1, follow_up=0.0)
    own = with_tokenizer(session, AutoTokenizer.from_pretrained(folder))
    made, out = worker(own, sampling), tmp_path / "c.jsonl"
    made.tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    answering(monkeypatch, made.tokenizer, {"Two?": ("I think[/THINK]Two.<|endoftext|>", True)})
    made.tokenizer.chat_template = TEMPLATE.replace("<assistant>{% endif", "<assistant>[THINK]{% endif")
    made.run(requests_of(PromptSources([Document("Two?")]), sampling), out)
    (row,) = rows_of(out)
    assert row["messages"][1]["content"] == "I think[/THINK]Two."
    ids, learnt = split_coded(encode_corpus([out], made.tokenizer, tmp_path / "c.npz").tokens)
    assert made.tokenizer.decode(ids) == "<user>Two?<|endoftext|><assistant>[THINK]I think[/THINK]Two.<|endoftext|>"
    assert made.tokenizer.decode(ids[learnt]) == "I think[/THINK]Two.<|endoftext|>"


def test_a_chat_goes_on_after_a_whole_answer_only(session, tmp_path, monkeypatch):
    sampling = ChatSampling(tokens=10**6, batch=1)
    turns = [{"role": role, "content": text} for role, text in (("user", "One?"), ("assistant", "-"), ("user", "Two?"))]
    for ended, roles in ((True, ["user", "assistant"] * 2), (False, ["user", "assistant"])):
        made, out = worker(session, sampling), tmp_path / f"{ended}.jsonl"
        answering(monkeypatch, made.tokenizer, {"<assistant>": ("I think so.", ended)})
        made.run(requests_of(PromptSources([Document("", turns=turns)]), sampling), out)
        (row,) = rows_of(out)
        assert [message["role"] for message in row["messages"]] == roles and row["ended"] == ended


def test_scores_of_a_padded_batch_are_scaled_as_the_model_asks():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, rows, 8) for heads, rows in ((4, 1), (2, 5), (2, 5)))
    attend = AttentionInterface()[batched_sampling.ATTENTION]
    for scaling in (0.7, None):
        wanted = F.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True)
        found, _ = attend(None, query, key, value, None, scaling=scaling)
        assert torch.allclose(found, wanted.transpose(1, 2), atol=1e-6)


def test_a_continuation_keeps_the_space_before_it(session, tmp_path, monkeypatch):
    words = Tokenizer(models.WordLevel({"\u2581one": 0, "\u2581two": 1, "<end>": 2}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    words.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    made, out = worker(with_tokenizer(session, tokenizer)), tmp_path / "texts.jsonl"
    answering(monkeypatch, tokenizer, {"": ("two", False)})
    made.run(islice(requests_of(PromptSources(continued=[Document(" ".join(["one"] * 90))]), SAMPLING), 1), out)
    (row,) = rows_of(out)
    assert set(row["text"].split()) == {"one", "two"} and row["text"].endswith("one two")


def test_a_chat_ends_before_a_turn_that_the_model_has_no_positions_for(session, tmp_path, monkeypatch):
    positions = session.target.max_positions
    sampling = ChatSampling(tokens=10**6, batch=1, most=16)
    long = Document("word " * positions)
    second = Document("", "chat", turns=[{"role": "user", "content": text} for text in ("One?", long.text)])
    nearly = Document("a" * (positions - 20))
    made, asked = worker(session, sampling), []
    answering(monkeypatch, made.tokenizer, {}, asked)
    counts = made.run(requests_of(PromptSources([long, second, nearly]), sampling), tmp_path / "c.jsonl")
    assert counts["too long"] == 1 and counts["kept"] == 2
    rows = {row["messages"][0]["content"]: row for row in rows_of(tmp_path / "c.jsonl")}
    assert [turn["role"] for turn in rows["One?"]["messages"]] == ["user", "assistant"]
    assert all(len(turn.prompt) + turn.most <= positions for turn in asked)


def test_an_answer_that_was_cut_off_is_learnt_without_an_end(session, tmp_path, monkeypatch):
    sampling = ChatSampling(tokens=10**6, batch=1, follow_up=0.0)
    made, out = worker(session, sampling), tmp_path / "c.jsonl"
    answering(monkeypatch, made.tokenizer, {"<assistant>": ("I think", False)})
    made.run(islice(requests_of(PromptSources(magpie=True), sampling), 1), out)
    end = made.tokenizer.eos_token_id
    coded = encode_corpus([out], made.tokenizer, tmp_path / "c.npz").tokens
    ids, learnt = split_coded(coded)
    assert made.tokenizer.decode(ids[learnt]) == "I think" and ids[-1] != end
    out.write_text(out.read_text().replace('"ended": false', '"ended": true'))
    ids, learnt = split_coded(encode_corpus([out], made.tokenizer, tmp_path / "d.npz").tokens)
    assert ids[-1] == end and learnt[-1]


@pytest.mark.slow
def test_the_command_writes_chats_that_training_reads(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "chats.jsonl"
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"text": f"What is {i}?"}) + "\n" for i in range(6)))
    options = [
        "train",
        "regenerate",
        "--model",
        str(folder),
        "--prompts",
        str(tmp_path / "p.jsonl"),
        "--batch",
        "4",
        "--max-new-tokens",
        "12",
        "--dtype",
        "float32",
        "--out",
        str(out),
    ]
    code, printed, _ = run(capsys, monkeypatch, *options)
    assert code == 0 and "answer tokens" in printed
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (encode_corpus([out], tokenizer, tmp_path / "c.npz").tokens >= 0).sum() >= 24
    options[4:6], options[-1] = ["--magpie", "--tokens", "30"], str(tmp_path / "invented.jsonl")
    code, printed, _ = run(capsys, monkeypatch, *options)
    assert code == 0 and all(row["messages"][0]["content"] for row in rows_of(tmp_path / "invented.jsonl"))
    (tmp_path / "chats.jsonl.progress").unlink()
    with pytest.raises(ValueError, match="does not say how far it is"):
        regenerate(load(folder, None, tell=False), out, SAMPLING, PromptSources(magpie=True))
    with pytest.raises(ValueError, match="Nothing to answer"):
        PromptSources.read()


def test_a_continuation_is_written_as_text_after_its_excerpt(session, tmp_path, monkeypatch):
    source = "".join(f"What is {i} plus two?\n{i + 2}, I think.\n" for i in range(40))
    made, out = worker(session), tmp_path / "texts.jsonl"
    answering(monkeypatch, made.tokenizer, {"<user>": ("Not a text.", True), "": ("Fine.", False)})
    chats = requests_of(PromptSources(continued=[Document(source, "code-python")]), replace(SAMPLING, longest=500))
    made.run(islice(chats, 3), out)
    assert max(len(row["text"]) for row in rows_of(out)) <= len("Fine.") + 500
    for row in rows_of(out):
        assert row["text"].removesuffix("Fine.") in source and row["text"].endswith("Fine.")
        assert (row["type"], row["source"]) == ("code-python", "continued") and "messages" not in row
    coded = encode_corpus([out], made.tokenizer, tmp_path / "c.npz")
    assert coded.types == ("code-python",) * 3 and made.tokenizer.eos_token_id not in coded.tokens


def test_a_model_without_a_chat_template_continues_texts_only(folder, tmp_path, capsys, monkeypatch):
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    (plain / "chat_template.jinja").unlink()
    (tmp_path / "d.txt").write_text("".join(f"What is {i} plus two?\n" for i in range(40)))
    out = tmp_path / "texts.jsonl"
    options = [
        "train",
        "regenerate",
        "--model",
        str(plain),
        "--continue",
        str(tmp_path / "d.txt"),
        "--batch",
        "2",
        "--max-new-tokens",
        "12",
        "--tokens",
        "40",
        "--temperatures",
        "1",
        "--out",
        str(out),
    ]
    assert run(capsys, monkeypatch, *options)[0] == 0 and sum(row["tokens"] for row in rows_of(out)) >= 40
    with pytest.raises(ValueError, match="no chat template"):
        regenerate(load(plain, None, tell=False), tmp_path / "o.jsonl", SAMPLING, PromptSources(magpie=True))


# Given chats are answered whole -------------------------------------------------------------------------------------

CALL = {"type": "function", "function": {"name": "find", "arguments": {"city": "Paris"}}}
FIND = {"type": "function", "function": {"name": "find", "parameters": {}}}
WITH_TOOLS = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ALL = ChatSampling(tokens=10**6, batch=1)


def turn(role, content="", **more):
    return {"role": role, "content": content, **more}


def prompts_of(path, *rows) -> PromptSources:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptSources.read([path])


def with_template(session, folder, template):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    return with_tokenizer(session, tokenizer)


def test_a_given_chat_is_answered_with_its_system_its_tools_and_their_results(folder, session, tmp_path, monkeypatch):
    own = with_template(session, folder, WITH_TOOLS)
    call = turn("assistant", tool_calls=[CALL])
    given = [turn("system", "Be kind."), turn("assistant", "Hello!"), turn("user", "Where?"), call]
    given += [turn("tool", "It is."), turn("assistant", "old"), turn("user", "Sure?")]
    sources = prompts_of(tmp_path / "p.jsonl", {"messages": given, "tools": [FIND]})
    made, out, asked = worker(own, ALL), tmp_path / "c.jsonl", []
    answering(monkeypatch, own.tokenizer, {}, asked)
    made.run(requests_of(sources, ALL), out)
    first = (
        "[find]<system>Be kind.<|endoftext|><assistant>Hello!<|endoftext|><user>Where?<|endoftext|>"
        "<assistant>find<|endoftext|><tool>It is.<|endoftext|><assistant>"
    )
    second = first + "Fine.<|endoftext|><user>Sure?<|endoftext|><assistant>"
    assert [own.tokenizer.decode(turn.prompt) for turn in asked] == [first, second]
    (row,) = rows_of(out)
    assert row["tools"] == [FIND]
    ids, learnt = split_coded(encode_corpus([out], own.tokenizer, tmp_path / "c.npz").tokens)
    assert own.tokenizer.decode(ids) == second + "Fine.<|endoftext|>"
    assert own.tokenizer.decode(ids[learnt]) == "Fine.<|endoftext|>" * 2


def test_the_same_request_after_another_system_or_with_other_tools_is_another_chat(
    folder, session, tmp_path, monkeypatch
):
    own = with_template(session, folder, WITH_TOOLS)
    one = turn("user", "One?")
    rows = [
        {"messages": [one]},
        {"messages": [turn("system", "Be kind."), one]},
        {"messages": [turn("system", "Be brief."), one]},
        {"messages": [one], "tools": [FIND]},
        {"messages": [one, turn("user", "Two?")]},
        {"messages": [turn("system", "Be brief."), one]},
    ]
    answering(monkeypatch, own.tokenizer, {})
    sources, out = prompts_of(tmp_path / "p.jsonl", *rows), tmp_path / "c.jsonl"
    counts = worker(own, ALL).run(requests_of(sources, ALL), out)
    assert (counts["kept"], counts["repeated"]) == (5, 1)
    again = (replace(chat, index=chat.index + 100) for chat in requests_of(sources, ALL))
    counts = worker(own, ALL).run(again, out)
    assert (counts["kept"], counts["repeated"]) == (5, 7)


@pytest.mark.parametrize(
    "row, said",
    [
        ({"messages": [turn("user", "One?")], "tools": [FIND]}, "it does not show the tools"),
        ({"messages": [turn("system", "No."), turn("user", "Two?")]}, "No systems"),
    ],
)
def test_a_given_chat_that_the_template_does_not_take_is_dropped_with_its_line(
    row, said, folder, session, tmp_path, monkeypatch, capsys
):
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('No systems.') }}{% endif %}" + TEMPLATE
    own = with_template(session, folder, strict)
    answering(monkeypatch, own.tokenizer, {})
    sources = prompts_of(tmp_path / "p.jsonl", {"messages": [turn("user", "Three?")]}, row, row)
    counts = worker(own, ALL).run(requests_of(sources, ALL), tmp_path / "c.jsonl")
    assert (counts["kept"], counts["not taken by the chat template"]) == (1, 2)
    found = capsys.readouterr().err
    assert found.count("is left out") == 1 and f"the chat template does not take it ({said})" in found
    assert "p.jsonl, line " in found


def test_a_chat_whose_second_prompt_the_template_refuses_is_dropped(folder, session, tmp_path, monkeypatch, capsys):
    strict = "{% if messages|length == 3 and messages[1].content == 'Fine.' %}{{ raise_exception('No.') }}{% endif %}"
    own = with_template(session, folder, strict + TEMPLATE)
    answering(monkeypatch, own.tokenizer, {})
    chat = Document("", "chat", turns=[turn("user", "One?"), turn("user", "Two?")])
    counts = worker(own, ALL).run(requests_of(PromptSources([chat]), ALL), tmp_path / "c.jsonl")
    assert counts["not taken by the chat template"] == 1 and counts["kept"] == 0 == counts["tokens"]
    assert "chat 0 is left out" in capsys.readouterr().err


@pytest.mark.parametrize("row", [{"text": " "}, {"messages": [turn("system", "Be kind.")]}])
def test_prompts_without_a_request_are_refused_with_their_line(row, tmp_path):
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2 has no request to answer"):
        prompts_of(tmp_path / "p.jsonl", {"text": "One?"}, row)


def test_a_template_sees_no_roles_but_those_of_chats(folder, session, tmp_path, monkeypatch):
    strict = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception(m.role) }}{% endif %}"
        "{% endfor %}"
    )
    own = with_template(session, folder, strict + TEMPLATE)
    answering(monkeypatch, own.tokenizer, {})
    sources = PromptSources([Document("One?")], magpie=True)
    made = worker(own, replace(ALL, follow_up=1.0))
    counts = made.run(islice(requests_of(sources, made.sampling), 2), tmp_path / "c.jsonl")
    assert counts["kept"] == 2 and not counts["not taken by the chat template"]


def test_answers_that_are_not_to_be_learnt_stay_in_a_given_chat(session):
    turns = [turn("user", "One?"), turn("assistant", "Yes."), turn("user", "Two?"), turn("assistant", "old")]
    chat = Document(
        "", "chat", turns=[*turns, turn("assistant", "old, too"), turn("system", "Bye.")], unlearnt=frozenset([1])
    )
    (planned,) = requests_of(PromptSources([chat]), ALL)
    assert planned.plan == [turns[0], turns[1] | {"train": False}, turns[2], Own.ANSWER]


def test_texts_that_are_too_short_for_an_excerpt_are_counted_and_chats_refused(tmp_path, capsys):
    (tmp_path / "long.txt").write_text("word " * 100)
    (tmp_path / "short.txt").write_text("word")
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": [turn("user", "One?")]}))
    sources = PromptSources.read(documents=[tmp_path / "long.txt", tmp_path / "short.txt"])
    assert len(sources.documents) == 1
    assert capsys.readouterr().err == "longgraft: texts of --documents with fewer than 400 characters: 1 left out\n"
    with pytest.raises(ValueError, match=r"No text of --continue has 400 characters"):
        PromptSources.read(continued=[tmp_path / "short.txt"])
    with pytest.raises(ValueError, match=r"chat\.jsonl, line 1 is a chat, and --documents takes texts"):
        PromptSources.read(documents=[tmp_path / "chat.jsonl"])
