"""Constrained, biased and penalised answers are those of plain decoding under the same settings, for every method."""

from __future__ import annotations

import asyncio
import json
import math
import re
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count

import httpx
import pytest
import torch
from jsonschema import validate
from toys.covering import covering, named
from toys.models import toy_model
from toys.oracle import draw
from toys.served import Gate, asking, completed, listening, meanwhile, started, submitted, tokens_of, until, working
from toys.sessions import METHODS, toy_parts, toy_prompt, toy_session
from toys.tokenizers import ascii_tokenizer
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from longgraft.acceptance import constraints, json_schemas, shaping
from longgraft.acceptance.constraints import DeadEnd, constraint
from longgraft.acceptance.json_schemas import TooExpensive
from longgraft.acceptance.sampling import LogitOptions, Sampling
from longgraft.acceptance.shaping import Shaped, Shaping
from longgraft.engine import scheduler
from longgraft.engine.engine import Engine
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import generate_all
from longgraft.engine.token_bytes import TokenBytes
from longgraft.methods.find import build
from longgraft.runtime import limited_process
from longgraft.runtime.clock import Clock
from longgraft.runtime.limited_process import Cancellation, Cancelled, Limits
from longgraft.serve.formats.logprobs import chat_logprobs
from longgraft.trees.tree import FORCED, ProposalTree

TOKENIZER = ascii_tokenizer()
END = TOKENIZER.eos_token_id
SCHEMA = {
    "type": "object",
    "properties": {
        "ab": {"type": "boolean"},
        "kind": {"enum": ["tree", "true"]},
        "n": {"type": "integer"},
        "of": {"type": "string", "maxLength": 6},
    },
    "required": ["ab", "kind", "n", "of"],
    "additionalProperties": False,
}
DATE = r"20[0-9]{2}-[01][0-9]-[0-3][0-9](T[a-z]{3,6})?"
LIST = 'root ::= item (", " item)*\nitem ::= "abc" | [0-9] [0-9]'
OPTIONS = {
    "schema": dict(json_schema=SCHEMA),
    "regex": dict(regex=DATE),
    "grammar": dict(grammar=LIST),
    "penalties": dict(
        repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.7, logit_bias={5: 2.5, 20: -100.0}
    ),
    "both": dict(json_schema=SCHEMA, repetition_penalty=1.2, frequency_penalty=0.5),
}
DRAWS = {
    "greedy": {},
    "sampled": dict(temperature=1.0, seed=5),
    "warped": dict(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=11),
}
MANY_OPTIONAL = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(2000)}}
NEW = 24
EXACT = [name for name in METHODS if not name.startswith("specpv")]  # specpv verifies with a part of the cache


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


def session(method: str, **more) -> Session:
    return Session(toy_session(method, **more).engine, TOKENIZER)


@cache
def plain(options: str, drawn: str, length: int = 60) -> list[int]:
    """Returns the answer of the model's own forwards with transformers' processors and the matcher's mask."""
    sampling = Sampling(**OPTIONS[options], **DRAWS[drawn])
    processors = LogitsProcessorList()
    if sampling.logit_bias:
        processors.append(
            SequenceBiasLogitsProcessor({(token,): float(bias) for token, bias in sampling.logit_bias.items()})
        )
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    follows = sampling.constraint and constraint(*sampling.constraint, TOKENIZER, 96, [END])
    ids = toy_prompt(length)
    while len(ids) < length + NEW and ids[-1] != END:
        text, answer = torch.tensor([ids]), ids[length:]
        with torch.no_grad():
            logits = toy_model()(text, attention_mask=torch.ones_like(text), use_cache=False).logits[:, -1]
        scores = processors(text, logits)[0]
        for token in set(answer):
            scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * answer.count(token)
        if follows:
            scores[~follows.allowed()] = float("-inf")
        ids.append(draw(scores, Sampling(**DRAWS[drawn]), len(ids)))
        if follows:
            follows.advance(ids[-1])
    return ids[length:]


@pytest.fixture(autouse=True)
def enough_time(monkeypatch):
    """Fits all trees to the end: within the time of a step, a busy machine may propose less."""
    monkeypatch.setattr(shaping, "FIT_SECONDS", 1e9)
    monkeypatch.setattr(shaping, "WALK_SECONDS", 1e9)


@pytest.mark.one_in(15)
@pytest.mark.parametrize(
    ("method", "options", "drawn"), covering(EXACT, ("regex", "penalties", "both"), DRAWS), ids=named
)
def test_every_method_equals_plain_decoding_under_the_same_constraints(method, options, drawn):
    ours = session(method).generate(toy_prompt(60), NEW, **OPTIONS[options], **DRAWS[drawn])
    assert ours.token_ids == plain(options, drawn)


def test_an_answer_ends_only_when_it_is_complete_and_valid():
    found = session("pld").generate(toy_prompt(60), 200, json_schema=SCHEMA, frequency_penalty=1.0)
    assert found.finish_reason == "eos" and found.token_ids[-1] == END
    validate(json.loads(found.text), SCHEMA)


@pytest.mark.slow
def test_several_requests_have_constraints_of_their_own():
    made = [Sampling(**OPTIONS[options], **DRAWS[drawn]) for options in OPTIONS for drawn in DRAWS]
    parts = toy_parts()

    def lane() -> Lane:
        own = replace(parts, kept={}, clock=Clock())
        return Lane(own.target, build("graft", own), own.clock)

    session = Session(Engine(lane(), 16, another=lane), TOKENIZER)
    found = generate_all(session, [toy_prompt(60)] * len(made), NEW, samplings=made, most=4)
    assert [one.token_ids for one in found] == [plain(options, drawn) for options in OPTIONS for drawn in DRAWS]


def fitted(text: str, tree: ProposalTree, budget: int, **options) -> ProposalTree:
    """Fits a tree to the constraint after `text`, whose last token is the root."""
    wanted = Sampling(**options)
    follows = constraint(*wanted.constraint, TOKENIZER, 96, [END])
    for token in ids_of(text):
        follows.advance(token)
    return Shaping(wanted, [1], follows).fitted(tree, budget)


def paths(tree: ProposalTree) -> set[str]:
    """Returns the texts of all nodes' paths."""
    texts = {0: ""}
    for node, parent in enumerate(tree.parents.tolist()):
        if node:
            texts[node] = texts[parent] + TOKENIZER.decode([int(tree.tokens[node])])
    return set(texts.values()) - {""}


def test_forced_tokens_are_proposed_first_and_forbidden_ones_are_cut():
    nothing = ProposalTree.root_only(ids_of('{"')[0])
    forced = fitted('{"', nothing, 3, json_schema=SCHEMA)
    assert paths(forced) == {"ab", 'ab":'} and forced.origin.tolist()[1:] == [FORCED] * 2
    choice = fitted('{"', nothing, 60, json_schema=SCHEMA)
    assert {'ab": true, "kind": "true", "n": ', 'ab": false, "kind": "true", "n": '} <= paths(choice)
    wrong = ProposalTree.build(
        [91, *ids_of("abx")], [-1, 0, 1, 0][: 1 + len(ids_of("abx"))], [0.0, -0.1, -0.2], [1, 4, 4]
    )
    assert "abx" not in paths(fitted('{"', wrong, 8, json_schema=SCHEMA))
    spelt = ProposalTree.chain(torch.tensor([18, *(ids_of(letter)[0] for letter in "truetru")]), 4)
    found = fitted("20", spelt, 8, regex="20(true){9}")
    assert len(found) == 8 and (0, ids_of("true")[0]) in found.children and (0, ids_of("t")[0]) not in found.children


@pytest.mark.parametrize(
    ("scores", "longer"),
    [((-0.1, -0.2), "atruetruetrue"), ((-0.2, -0.1), "btruetruetrue"), ((math.nan, -0.2), "btruetruetrue")],
)
def test_the_most_probable_leaf_is_continued_first_and_one_without_an_estimate_last(scores, longer):
    (first,), (second,) = ids_of("a"), ids_of("b")
    tree = ProposalTree.build([*ids_of("0"), first, second], [-1, 0, 0], [0.0, *scores], [1, 4, 4])
    found = fitted("20", tree, 6, regex="20[a-z](true){3}")
    assert {"a", longer, "b"} <= paths(found) and len(found) == 6


def test_forced_tokens_are_accepted_in_few_steps_and_counted():
    found = session("pld").generate(toy_prompt(60), 40, regex='a{"kind": "tree", "of": 1}[0-9]'.replace("{", r"\{"))
    assert found.stats.accepted_by_origin["forced"] >= 15 and found.stats.steps <= 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            dict(json_schema={"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}),
            "json_schema cannot be followed: it leaves too many possibilities open",
        ),
        (
            dict(json_schema={"type": "strin"}),
            'json_schema cannot be followed: type is "strin", and this is not supported',
        ),
        (dict(regex="(ab"), "regex cannot be followed: unclosed group."),
        (dict(grammar="start: foo"), 'grammar cannot be followed: unknown name: "foo".'),
        (dict(regex="a", grammar="b"), "regex and grammar were given; an answer follows one of them."),
        (dict(regex="é+"), "regex cannot be followed: The answer cannot go on: no token of this model spells"),
        (dict(regex="aé"), "The answer cannot go on: no token of this model spells"),
        (dict(json_schema={"$ref": "#"}), "json_schema cannot be followed: The answer cannot go on"),
        (dict(json_schema={"const": {1}}), "json_schema cannot be written as JSON"),
        (dict(json_schema=" " * 2**21), "json_schema has 2,097,152 characters, and 1,048,576 are allowed"),
        (dict(regex="a" * 2**16), "regex has 65,536 characters, and 32,768 are allowed"),
        (
            dict(json_schema={"type": "array", "items": MANY_OPTIONAL}),
            "one object has 2,000 optional properties where 480 are allowed. Leave it out.",
        ),
        (dict(grammar='root ::= "a'), "grammar cannot be followed: Failed to convert the grammar from GBNF to Lark"),
        (
            dict(json_schema={"enum": [[{"text": "a" * 99, "n": n}] for n in range(9000)]}),
            "json_schema has more than 1,048,576 characters. Shorten it.",
        ),
        (dict(regex=5), "regex is 5; it must be text"),
        (
            dict(repetition_penalty=0.0),
            "repetition_penalty is 0.0; it must be a number from 0.001 to 1,000; 1 changes none",
        ),
        (dict(repetition_penalty=float("nan")), "repetition_penalty is nan"),
        (dict(logit_bias={96: 1.0}), "The logit_bias has token ids from 96 to 96"),
        (
            dict(logit_bias={5: 1e39}),
            "logit_bias of 5 is 1e+39; it must be a number from -1,000,000,000 to 1,000,000,000; "
            "-1,000,000,000 forbids the token",
        ),
        (dict(logit_bias={5: "1"}), "logit_bias of 5 is '1'; it must be a number"),
        (dict(logit_bias=[5]), "logit_bias is [5]; it must be a mapping"),
        (dict(logprobs=21), "logprobs is 21; it must be a whole number from 0 to 20"),
        (dict(regex="a", replay=[1]), "regex would change nothing"),
    ],
)
def test_mistakes_raise_one_sentence(options, said):
    with pytest.raises(ValueError) as error:
        session("ar").generate(toy_prompt(20), 4, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_schema_of_many_references_is_compiled_and_does_not_end_the_process():
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(4000)} | {"d4000": {"enum": ["ab"]}}
    assert session("ar").generate(toy_prompt(20), 8, json_schema={"$defs": chain, "$ref": "#/$defs/d0"}).text == '"ab"'


AMBIGUOUS = 'root ::= s\ns ::= s s s | s s | "a" | "b" | " "'


def test_grammar_that_needs_too_much_work_ends_its_answer():
    with pytest.raises(DeadEnd, match="cannot be followed further: it leaves too many possibilities open"):
        session("ar").generate(toy_prompt(20), 200, grammar=AMBIGUOUS)


def test_slow_proposals_are_cut_at_the_deadline():
    follows, path = constraint("grammar", AMBIGUOUS, TOKENIZER, 96, [END]), ids_of("ab" * 80)
    assert follows.accepted(path[:9]) == 9 > follows.accepted(path[:9], deadline=0.0) == 0
    assert 40 < follows.accepted(path) < 80, "no limit on the items of a row"


def test_answers_do_not_depend_on_the_time_limits(monkeypatch):
    monkeypatch.setattr(shaping, "FIT_SECONDS", -1.0)
    kept = session("pld").generate(toy_prompt(60), NEW, **OPTIONS["both"])
    monkeypatch.undo()
    monkeypatch.setattr(shaping, "WALK_SECONDS", -1.0)
    one_by_one = session("pld").generate(toy_prompt(60), NEW, **OPTIONS["both"])
    assert kept.token_ids == one_by_one.token_ids == plain("both", "greedy")
    assert one_by_one.stats.steps == len(one_by_one.token_ids) - 1


RULES = "".join(f'\nr{n} ::= "a" r{n + 1} | "b"' for n in range(8000))
MULTIPLE = {"type": "integer", "multipleOf": 9999991}
JOINED = "start: A\nA: " + " & ".join(rf"/(.*x)?(.|\n){{{n}}}y.*/" for n in range(1, 59))
BOMBS = {
    "a prime": dict(json_schema=MULTIPLE),
    "two primes": dict(json_schema={"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}),
    "an alternative": dict(json_schema={"anyOf": [{"type": "integer", "multipleOf": n} for n in (997, 996, 995)]}),
    "patterns": dict(json_schema={"allOf": [{"pattern": rf"^(a|b)*a(a|b){{{n}}}$"} for n in range(2, 40)]}),
    "JSON in Lark": dict(grammar=f"start: %json {json.dumps(MULTIPLE)}"),
    "expressions": dict(grammar=JOINED),
    "GBNF": dict(grammar=f'root ::= r0{RULES}\nr8000 ::= "c"'),
}


@pytest.fixture
def little_work(monkeypatch):
    """Refuses a constraint that takes 0.4 s of a processor, or 32 MiB."""
    monkeypatch.setattr(json_schemas, "WORK", Limits(0.4, 2**25))


@pytest.mark.parametrize("options", BOMBS.values(), ids=BOMBS)
def test_constraint_that_takes_too_much_work_is_refused_and_takes_no_memory_here(little_work, options):
    (name,) = options
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooExpensive) as error:
        constraint(*LogitOptions(**options).constraint, TOKENIZER, 96, [END])
    said = f"{name} cannot be followed: it takes more than 0.4 s of a processor or 32 MiB to compile; simplify it."
    assert str(error.value) == said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**13, "KiB"


def test_small_constraint_is_compiled_beside_two_that_do_not_end(monkeypatch):
    monkeypatch.setattr(json_schemas, "WORK", Limits(600, 2**33))
    cancellations = [Cancellation(), Cancellation()]
    name, text = "json_schema", json.dumps(MULTIPLE)
    with ThreadPoolExecutor(2) as threads:
        tasks = [threads.submit(one.run, constraint, name, text, TOKENIZER, 96, [END]) for one in cancellations]
        for end in "abcdef":
            assert constraint("regex", f"[0-9]{end}", TOKENIZER, 96, [END]).allowed().sum() == 10
        assert not any(task.done() for task in tasks)
        for one in cancellations:
            one.cancel()
        assert all(isinstance(task.exception(), Cancelled) for task in tasks)


def test_kept_matchers_take_limited_memory(monkeypatch):
    compiled = []

    def compile(*args):
        compiled.append(args)
        return trial(*args)

    trial = constraints._compiled
    monkeypatch.setattr(constraints, "_compiled", compile)
    monkeypatch.setattr(constraints, "CACHE_BYTES", 2.5 * 2**20)
    constraints._matchers.clear()
    for regex in ("a", "b", "a", "c", "a", "b"):
        constraint("regex", regex, TOKENIZER, 96, [END])
    assert [text for _, text, *_ in compiled] == ["a", "b", "c", "b"]


def test_request_with_a_slow_constraint_rests_while_others_are_decoded(monkeypatch):
    monkeypatch.setattr(scheduler, "SLOW", 0.0)
    monkeypatch.setattr(scheduler, "REST", 1e9)
    parts, steps = toy_parts(), []

    def lane() -> Lane:
        own = replace(parts, kept={}, clock=Clock())
        return Lane(own.target, build("ar", own), own.clock)

    session = Session(Engine(lane(), 16, another=lane), TOKENIZER)

    class Order(Gate):
        def stepped(self, running, step, seconds):
            super().stepped(running, step, seconds)
            steps.append(running.requested.sampling.regex)

    async def play(made):
        requests = [
            GenerationRequest(toy_prompt(20), 20, Sampling(regex=regex), eos=(END,)) for regex in ("[ab]{99}", None)
        ]
        taken = [submitted(made, request) for request in requests]
        gate.allow()  # both have come
        return [len(ids) for ids in await asyncio.gather(*map(tokens_of, taken))]

    gate = Order()
    assert working(play, gate, session, running=2) == [20, 20]
    last = max(n for n, regex in enumerate(steps) if regex is None)
    assert steps[:last].count("[ab]{99}") < 6 < 19 <= steps[: last + 1].count(None)


def test_a_missing_extra_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    constraints._matchers.clear()
    with pytest.raises(ValueError, match=r'pip install "longgraft\[grammar\]"'):
        session("ar").generate(toy_prompt(20), 4, regex="a")


def test_logits_get_their_bias_before_the_repetition_penalty_and_the_other_penalties_after_it():
    """Biases that change a logit's sign, so that every other order gives other numbers."""
    options = LogitOptions(
        logit_bias={1: 2.0, 2: -3.0}, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    shaping, logits = Shaping(options, prompt=[0, 1, 2]), torch.tensor([[0.5, -1.0, 1.0, 3.0, -4.0]])
    assert shaping.shaped(logits)[0].tolist() == [0.5 / 2, (-1 + 2) / 2, (1 - 3) * 2, 3.0, -4.0]
    for token in (1, 1, 4):
        shaping.advance(token, logits)
    assert shaping.shaped(logits)[0].tolist() == [
        0.5 / 2,
        (-1 + 2) / 2 - 2 * 0.25 - 0.5,
        (1 - 3) * 2,
        3.0,
        -4 * 2 - 0.25 - 0.5,
    ]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_alone_lowers_tokens_of_the_answer(penalty):
    shaping, logits = Shaping(LogitOptions(**{penalty: 0.5}), prompt=[0]), torch.zeros(1, 3)
    shaping.shaped(logits)
    for token in (1, 1, 2):
        shaping.advance(token, logits)
    twice = 1.0 if penalty == "frequency_penalty" else 0.5
    assert shaping.shaped(logits)[0].tolist() == [0.0, -twice, -0.5]


def test_a_walk_into_a_dead_end_stops_a_token_before_it_and_counts_its_seconds(monkeypatch):
    """The token before the dead end is drawn again as the next root, where the answer may have ended."""

    class Ending:
        ended, drawn = False, 0

        def allowed(self):
            if self.drawn == 3:
                raise DeadEnd("no token may follow")
            return torch.ones(6, dtype=torch.bool)

        def advance(self, token):
            self.drawn += 1

    monkeypatch.setattr(shaping, "WALK_SECONDS", 1e9)
    monkeypatch.setattr(shaping.time, "thread_time", count(100).__next__)
    tree, logits = ProposalTree.chain(torch.tensor([5, 1, 2, 3]), 4), 9 * torch.eye(6)[[1, 2, 3, 4]]
    changes = Shaping(LogitOptions(), [0], Ending())
    changes.seconds = 10.0  # of what was fitted
    path, token = Shaped(Sampling().rule(0), changes)(tree, logits, torch.arange(4))
    assert (path.tolist(), token) == ([0, 1, 2], 3) and 10 < changes.seconds < 30


def test_log_probabilities_behind_the_end_of_an_answer_are_dropped():
    shaping, logits = Shaping(LogitOptions(logprobs=1), prompt=[0]), torch.tensor([[0.0, 1.0, 2.0]])
    shaping.shaped(logits)
    for token in (2, 0, 1):
        shaping.advance(token, logits)
    assert [one.token for one in shaping.taken(2)] == [2, 0] and shaping.taken(2) == ()
    shaping.advance(1, logits)
    assert [one.token for one in shaping.taken(1)] == [1]


@pytest.mark.parametrize("method", ["ar", "graft"])
def test_log_probabilities_are_those_of_the_raw_logits(method):
    """This holds for all emitted tokens, including accepted ones, whatever masks and penalties there are."""
    found = session(method).generate(toy_prompt(60), 20, json_schema=SCHEMA, repetition_penalty=1.3, logprobs=3)
    ids = torch.tensor([toy_prompt(60) + found.token_ids])
    with torch.no_grad():
        logs = toy_model()(ids, use_cache=False).logits[0, 59:-1].log_softmax(-1)
    assert [one.token for one in found.logprobs] == found.token_ids
    assert [one.logprob for one in found.logprobs] == pytest.approx(
        logs[range(len(found.token_ids)), found.token_ids].tolist(), abs=1e-4
    )
    assert [[token for token, _ in one.top] for one in found.logprobs] == logs.topk(3).indices.tolist()


@pytest.mark.parametrize("method", ["ar", "suffix", "graft-x-text"])
def test_an_answer_ends_at_a_stop_string_before_its_constraints_dead_end(method):
    """No token spells the constraint's last character."""
    ours, options = session(method), dict(regex="abc, 20\u00e9", logprobs=0)
    found = ours.generate(toy_prompt(60), NEW, stop="2", **options)
    assert (found.text, found.finish_reason, len(found.logprobs)) == ("abc, ", "stop", len(found.token_ids))
    with pytest.raises(DeadEnd):
        ours.generate(toy_prompt(60), NEW, stop="x", **options)


def test_options_without_effect_need_no_shaping():
    assert not Sampling(temperature=0.5, top_k=3).shaped and not LogitOptions(presence_penalty=0).shaped


def asked(path: str, **body):
    """Returns the answer of a server whose model has this file's tokenizer."""

    async def ask(http):
        return (await http.post(path, json={"temperature": 0, "max_tokens": 60} | body)).json()

    return asking(ask, session("pld"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}},
            dict(json_schema=SCHEMA),
        ),
        ({"response_format": {"type": "json_object"}}, dict(json_schema={"type": "object"})),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, dict(json_schema=SCHEMA)),
        ({"json_schema": {}}, dict(json_schema={})),
        ({"structured_outputs": {"json": {}}}, dict(json_schema={})),
        ({"guided_json": SCHEMA}, dict(json_schema=SCHEMA)),
        ({"guided_regex": DATE}, dict(regex=DATE)),
        ({"regex": DATE}, dict(regex=DATE)),
        ({"ebnf": 'root ::= "a" | "b"'}, dict(grammar='root ::= "a" | "b"')),
        ({"json_schema": '{"enum": [1, 2]}'}, dict(json_schema='{"enum": [1, 2]}')),
        ({"structured_outputs": {"choice": ["abc", "d"]}}, dict(regex="abc|d")),
        ({"grammar": LIST}, dict(grammar=LIST)),
        ({"repeat_penalty": 1.4, "logit_bias": {"5": 2.5}}, dict(repetition_penalty=1.4, logit_bias={5: 2.5})),
        (
            {"frequency_penalty": 0.7, "temperature": 1.0, "seed": 3},
            dict(frequency_penalty=0.7, temperature=1.0, seed=3),
        ),
    ],
)
def test_the_server_accepts_the_fields_of_other_servers(fields, options):
    prompt = toy_prompt(40)
    answer = asked("/v1/completions", prompt=prompt, return_token_ids=True, **fields)["choices"][0]
    assert answer["token_ids"] == session("ar").generate(prompt, 60, **options).token_ids


def test_guided_choice_takes_thousands_of_answers():
    answer = asked("/v1/completions", prompt=toy_prompt(40), guided_choice=[f"answer{n}" for n in range(4000)])
    assert re.fullmatch(r"answer[0-9]{1,4}", answer["choices"][0]["text"])


def test_a_dead_end_is_an_invalid_request():
    error = asked("/v1/completions", prompt=toy_prompt(40), guided_regex="aé")["error"]
    assert error["type"] == "invalid_request_error" and "no token of this model spells" in error["message"]
    assert error["param"] == "guided_regex"


def test_the_server_gives_log_probabilities_as_openai_does():
    found = session("ar").generate(toy_prompt(40), 8, logprobs=2, presence_penalty=1)
    answer = asked("/v1/completions", prompt=toy_prompt(40), max_tokens=8, logprobs=2, presence_penalty=1)
    columns = answer["choices"][0]["logprobs"]
    assert columns["tokens"] == [TOKENIZER.decode([one.token]) for one in found.logprobs]
    assert columns["token_logprobs"] == pytest.approx([one.logprob for one in found.logprobs], abs=1e-4)
    assert len(columns["text_offset"]) == 8 and len(columns["top_logprobs"][0]) == 2
    rows = chat_logprobs(found.logprobs, TokenBytes(TOKENIZER))["content"]
    assert rows[0]["token"] == columns["tokens"][0] and len(rows[0]["top_logprobs"]) == 2


ENDLESS = {"prompt": toy_prompt(20), "json_schema": MULTIPLE}


@pytest.fixture
def endless_work(monkeypatch):
    """Lets a constraint be compiled for minutes."""
    monkeypatch.setattr(json_schemas, "WORK", Limits(600, 2**33))


def compiles(url: str) -> bool:
    """Returns True while a request is encoded."""
    return re.search("num_requests_waiting{.*} 1.0", httpx.get(f"{url}/metrics").text) is not None


def test_constraint_of_a_client_that_has_gone_is_compiled_no_further(endless_work):
    with listening(session("ar")) as (url, _):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json=ENDLESS, timeout=0.2)
        until(lambda: not compiles(url))


def test_server_that_ends_does_not_wait_for_a_constraint(endless_work):
    with started(session("ar")) as (url, server), meanwhile(lambda: completed(url, **ENDLESS)) as answers:
        until(lambda: compiles(url))
        server.handle_exit(signal.SIGTERM, None)
    assert answers[0].status_code == 503 and answers[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("constraint", [{"grammar": 'root ::= "a"'}, {"guided_regex": "ab"}, {"json_schema": {}}])
def test_constraint_for_which_the_machine_has_no_time_is_not_the_clients_fault(monkeypatch, constraint):
    monkeypatch.setattr(limited_process, "PATIENCE", 1e-6)
    constraints._matchers.clear()
    json_schemas._examined.cache_clear()

    async def ask(http):
        return await http.post("/v1/completions", json={"prompt": toy_prompt(20)} | constraint)

    answer = asking(ask, session("ar"))
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
    assert answer.json()["error"] == {
        "message": "The machine is too busy to check the request's constraint. Try again later.",
        "type": "server_error",
        "param": None,
        "code": "overloaded",
    }
