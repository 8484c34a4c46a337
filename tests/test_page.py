"""Tests of the page at / in a real browser: what it shows, the keyboard, themes, and that it loads nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import pytest
from browser import CONTROL, SHIFT, Page, browser, chromium
from toys.models import VOCAB, toy_target
from toys.served import Gate, asking, characters, listening, until
from toys.tokenizers import TEXT, Bytes

from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.loading import load
from longgraft.methods.combinators import PlainDecoding
from longgraft.models.catalogue import SUGGESTED
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.serve.formats.token_origins import Pictures, Spans
from longgraft.target_model.model import Target
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

PROMPT, NEW = "def add(a, b):\n    return a <b> b\n" * 4, 90
ORIGINS = (DRAFT, RETRIEVED, DRAFT | RETRIEVED)
WORDS = {ROOT: "target", DRAFT: "drafted", RETRIEVED: "retrieved", DRAFT | RETRIEVED: "both"}
IDLE = "!document.querySelector('#run').disabled"


@cache
def plain_ids() -> tuple[int, ...]:
    """Returns the ids of plain decoding of the toy."""
    plain = Session(Engine(Lane(toy_target(), PlainDecoding(), Clock()), 1), characters())
    return tuple(plain.generate(PROMPT, NEW).token_ids)


@dataclass
class PartlyRight:
    """Proposes trees of 60 nodes that contain the next one to four right tokens, with all origins in turn."""

    memories: tuple[Memory, ...] = ()

    def propose(self, ask: Ask) -> ProposalTree:
        """Adds wrong siblings to each right token; some of them have children."""
        at = ask.position - len(PROMPT)
        tokens, parents, origins = [ask.root], [-1], [ROOT]

        def add(token: int, parent: int) -> int:
            tokens.append(token % VOCAB)
            parents.append(parent)
            origins.append(ORIGINS[(at + len(tokens)) % 3])
            return len(tokens) - 1

        here = 0
        for right in plain_ids()[at + 1 : at + 2 + at % 4]:
            for wrong in range(1, 5):
                add(right + wrong, here)
            here = add(right, here)
        while len(tokens) < 60:
            add(tokens[-1] + 7, max(0, len(tokens) - 4))
        return ProposalTree.build(tokens, parents, [-0.1 * n for n in range(60)], origins)


def session() -> Session:
    made = Session(Engine(Lane(toy_target(), PartlyRight(), Clock()), chunk=17), characters())
    made.pass_seconds = lambda rows, prefix: 1.0 + 0.02 * (rows - 1)
    return made


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here, in which the page is tried: apt-get install chromium")
    with browser(program, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def server():
    with listening(session()) as (address, _):
        yield address


@pytest.fixture
def opened(page, server) -> Page:
    """The page on a wide screen in the light theme, as a first-time visitor finds it."""
    page.screen(1300, 900)
    page.prefers(color_scheme="light")
    page.requests.clear()
    page.said.clear()
    page.open(f"{server}/")
    page.js("(localStorage.clear(), sessionStorage.clear())")
    send_raw(page)
    return page


def send_raw(page: Page) -> None:
    """Unticks the chat message, which the page ticks once it knows that the model has a chat template."""
    page.until("document.querySelector('#chat').checked")
    page.js("document.querySelector('#chat').checked = false")


def run(page: Page, new: int = NEW) -> None:
    """Starts a run by keyboard, from the prompt, which has the focus."""
    page.type(PROMPT)
    page.press("Tab")
    assert focused(page) == "max_tokens"
    page.type(str(new))
    page.press("Enter", CONTROL)


def finished(page: Page) -> None:
    """Waits until the answer has ended and is shown."""
    page.until(f"{IDLE} && /[a-z]/.test(document.querySelector('#finish').textContent)")


def focused(page: Page) -> str:
    return page.js("document.activeElement.id || document.activeElement.dataset.origin || ''")


def spans(page: Page) -> list[list[str]]:
    """Returns (class, text) of each span of the answer."""
    return page.js("[...document.querySelectorAll('#answer span')].map(s => [s.classList[0], s.textContent])")


def text(page: Page, name: str) -> str:
    return page.js(f"document.querySelector('#{name}').textContent")


def expected_steps(new: int = NEW) -> list[Step]:
    """Returns the steps of the request that the page shows, decoded here."""
    return [step for step in session().open(PROMPT, new) if step.tokens]


def test_a_run_by_keyboard_shows_the_origin_of_each_token(opened):
    run(opened)
    finished(opened)
    steps = expected_steps()
    shown = spans(opened)
    assert "".join(piece for _, piece in shown) == "".join(step.text for step in steps) != ""
    # A character is a token here.
    by = [WORDS[bits] for step in steps for bits in step.origins]
    assert [origin for origin, piece in shown for _ in piece] == by and set(by) == set(WORDS.values())
    counts = opened.js(
        "Object.fromEntries([...document.querySelectorAll('#legend button')].map("
        "b => [b.dataset.origin, Number(b.lastChild.textContent)]))"
    )
    assert counts == {word: by.count(word) for word in WORDS.values()}
    passes, kept = len(steps) - 1, sum(len(step.tokens) - 1 for step in steps)
    assert (text(opened, "steps"), text(opened, "new"), text(opened, "finish")) == (str(passes), str(NEW), "length")
    assert text(opened, "mat") == f"{kept / passes:.2f}" and float(text(opened, "rate").replace(",", "")) > 0
    assert text(opened, "prompt-tokens") == f"{len(PROMPT)} tokens" and text(opened, "memory").endswith("iB")
    assert text(opened, "status").startswith(f"Done: {NEW} tokens in ") and not opened.said


def test_the_tree_of_a_step_is_drawn_whole_and_also_listed(opened):
    run(opened)
    opened.until(f"{IDLE} && document.querySelector('#which').textContent")
    steps = expected_steps()[1:]
    for key, number in (("End", len(steps)), ("Home", 1), ("ArrowRight", 2)):
        opened.js("document.querySelector('#step').focus()")
        opened.press(key)
        step = steps[number - 1]
        assert text(opened, "which") == f"step {number} of {len(steps)}"
        boxes = opened.js(
            "[...document.querySelectorAll('#tree g')].map(g => [g.classList[0], "
            "g.classList.contains('on'), g.querySelector('title').textContent, "
            "...['x', 'y', 'width', 'height'].map(a => g.querySelector('rect')[a].baseVal.value)])"
        )
        bonus = number < len(steps) or len(step.tokens) == len(step.path)
        assert len(boxes) == len(step.tree) + bonus and sum(box[1] for box in boxes) == len(step.tokens) + 1
        assert sorted(box[0] for box in boxes) == sorted(
            [WORDS[bits] for bits in step.tree.origin.tolist()] + ["target"] * bonus
        )
        assert sum("not kept" in box[2] for box in boxes) == len(step.tree) - len(step.tokens[: len(step.path) - 1]) - 1
        assert len({box[4] for box in boxes if box[1]}) == 1  # the kept path is one row
        assert len({box[4] for box in boxes}) < len(boxes) / 2  # and ends of branches share rows
        for i, (*_, x, y, width, height) in enumerate(boxes):
            assert all(
                x + width <= left or left + wide <= x or y + height <= top or top + high <= y
                for *_, left, top, wide, high in boxes[:i]
            )
        assert opened.js("document.querySelector('#tree').getAttribute('aria-label')").startswith(f"Step {number}: ")
    opened.js("document.querySelector('summary').focus()")
    opened.press("Enter")
    opened.until("document.querySelectorAll('#list li').length")
    assert opened.js("document.querySelectorAll('#list li').length") == len(steps[1].tree) + 1
    lit = opened.js("[...document.querySelectorAll('#answer .now')].map(s => s.textContent).join('')")
    assert lit == steps[1].text


def test_escape_ends_decoding_and_comparison(page):
    for steps, about in ((12, "Answering"), (len(expected_steps()) + 3 + 2 * len(PROMPT) // 17, "plain")):
        gate = Gate(steps)
        with listening(session(), gate) as (address, worker):
            page.open(f"{address}/")
            send_raw(page)
            page.type(PROMPT)
            page.js(
                f"(document.querySelector('#compare').checked = true, "
                f"document.querySelector('#max_tokens').value = {NEW})"
            )
            page.press("Enter", CONTROL)
            page.until(f"document.querySelector('#status').textContent.includes('{about}')")
            page.press("Escape")
            page.until(f"{IDLE} && document.querySelector('#status').textContent.startsWith('Stopped after ')")
            gate.allow()
            until(lambda gate=gate, about=about: len(gate.ends) == 1 + (about == "plain"))
            assert gate.ends[-1].reason == "cancelled"
            until(lambda worker=worker: not worker.running and not worker.waiting)


def test_a_comparison_shows_plain_decoding_and_a_stop_text_is_never_shown(opened):
    whole = "".join(step.text for step in expected_steps(40))
    opened.js(f"document.querySelector('#stop').value = {whole[34:38]!r}")
    run(opened, 40)
    while focused(opened) != "compare":
        opened.press("Tab")
    opened.press(" ")
    opened.until(IDLE)
    opened.press("Enter", CONTROL)
    opened.until(f"{IDLE} && !document.querySelector('#times').hidden")
    assert text(opened, "same") == "identical ids \u2713" and text(opened, "speedup").endswith("\u00d7")
    assert float(text(opened, "plain-rate").replace(",", "")) > 0
    assert all(opened.js(f"document.querySelector('#chart .{whose}').getAttribute('d')") for whose in ("ours", "plain"))
    assert text(opened, "finish") == "stop text" and text(opened, "answer") == whole[: whole.index(whole[34:38])]


def test_break_even_shows_where_the_answer_stands(opened):
    assert opened.js("document.querySelector('#even').hidden")
    run(opened)
    finished(opened)
    need, own = (opened.js(f"document.querySelector('#even .{whose}').getAttribute('d')") for whose in ("need", "own"))
    assert need.count("L") == 6 and own.endswith("h0")
    height = float(own.split()[1][:-2])
    assert 0 <= height < min(float(point.split()[1]) for point in need[1:].split("L")), "more tokens than are needed"
    assert "tokens per step of " in text(opened, "even-about")


def test_an_answer_of_one_token_shows_no_ratio(opened):
    opened.js("document.querySelector('#compare').checked = true")
    run(opened, 1)
    opened.until(f"{IDLE} && !document.querySelector('#times').hidden")
    assert text(opened, "speedup") == text(opened, "plain-rate") == "\u2013"
    assert text(opened, "status") == "Done. Plain decoding says the same; one token has no speed to compare."


def test_light_and_dark_follow_the_system_until_one_is_chosen(opened):
    def dark() -> bool:
        red, *_ = opened.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        return red < 128

    assert not dark()
    opened.prefers(color_scheme="dark")
    assert dark()
    for _ in range(2):
        opened.press("Tab", SHIFT)
    assert focused(opened) == "theme"
    opened.press("Enter")  # light, in a dark system
    assert not dark()
    opened.open(opened.js("location.href"))
    assert not dark() and text(opened, "theme") == "Theme: light"


def test_the_page_shows_the_error_message_of_the_server(opened):
    for new, prompt, sentence in (
        ("many", "x", "max_tokens must be a valid integer."),
        ("10", "", "The prompt is empty. Give at least one token."),
        ("10", "x" * 600, "Shorten it."),
    ):
        opened.js(
            f"(document.querySelector('#max_tokens').value = '{new}', "
            f"document.querySelector('#prompt').value = '{prompt}')"
        )
        opened.press("Enter", CONTROL)
        opened.until(f"{IDLE} && !document.querySelector('#trouble').hidden")
        assert text(opened, "trouble").endswith(sentence) and "\n" not in text(opened, "trouble")
        opened.js("document.querySelector('#trouble').hidden = true")


def test_the_page_loads_nothing_from_other_origins_and_cannot(opened, server):
    run(opened, 5)
    finished(opened)
    assert len(opened.requests) >= 3 and all(one.startswith((server, "data:")) for one in opened.requests)
    assert not opened.said
    assert opened.js("fetch('http://localhost:9/').then(() => 'fetched', error => error.name)") == "TypeError"
    opened.until("true")
    assert any("Content Security Policy" in one for one in opened.said)
    assert (
        opened.js(
            "(document.body.append(Object.assign(document.createElement('script'), "
            "{textContent: 'window.foreign = 1'})), window.foreign ?? null)"
        )
        is None
    )


def test_a_key_is_asked_for_and_kept_in_the_tab(page):
    with listening(session(), api_key="open sesame") as (address, _):
        page.open(f"{address}/")
        page.until("document.querySelector('#locked').open")
        page.type("half")
        page.press("Escape")
        page.until("!document.querySelector('#locked').open")
        assert page.js("sessionStorage.getItem('key')") is None
        page.open(f"{address}/?")
        for key in ("wrong", "open sesame"):
            page.until("document.querySelector('#locked').open")
            assert focused(page) == "key"
            page.type(key)
            page.press("Enter")
        page.until("sessionStorage.getItem('key') === 'open sesame' && !document.querySelector('#locked').open")
        page.js("document.querySelector('#prompt').focus()")
        run(page, 5)
        finished(page)


def test_tab_reaches_every_control_in_page_order_with_a_visible_focus(opened):
    run(opened, 20)
    finished(opened)
    opened.js("document.querySelector('#theme').focus()")
    order = ["theme"]
    while order[-1] not in ("summary", "body"):
        line = opened.js("(style => style.outlineStyle + style.outlineWidth)(getComputedStyle(document.activeElement))")
        assert line == "solid2px", order
        opened.press("Tab")
        order.append(focused(opened) or opened.js("document.activeElement.localName"))
    assert order == [
        "theme",
        "open",
        "clear",
        "prompt",
        "max_tokens",
        "temperature",
        "seed",
        "stop",
        "compare",
        "chat",
        "run",
        "example",
        "drafted",
        "retrieved",
        "both",
        "target",
        "copy",
        "answer",
        "step",
        "canvas",
        "summary",
    ]


def test_example_fills_in_a_program_with_a_request_for_chats_and_sends_it(opened):
    for chat, ending in ((False, '"""Remove all items."""\n'), (True, "attribute limit to capacity.")):
        opened.js(
            f"(document.querySelector('#chat').checked = {str(chat).lower()}, "
            "document.querySelector('#example').click())"
        )
        opened.until(f"{IDLE} && document.querySelector('#trouble').textContent.endsWith('Shorten it.')")  # the toy
        assert opened.js("document.querySelector('#prompt').value").endswith(ending)
        assert opened.js("document.querySelector('#compare').checked")
        opened.js("document.querySelector('#trouble').textContent = ''")


def test_the_embedded_model_continues_the_example_and_its_page_says_that_it_is_a_toy(page):
    with listening(load(tell=False)) as (address, _):
        page.open(f"{address}/")
        page.until("document.querySelector('#about').textContent")
        page.js("document.querySelector('#example').click()")
        page.until(f"{IDLE} && !document.querySelector('#times').hidden")
        said = text(page, "status")
        assert said.startswith("Done. Plain decoding says the same; this was ") and "repeats itself" not in said
        assert int(text(page, "new")) == 64 and int(text(page, "steps")) < 63
        about = text(page, "about")
        assert "a toy of 7 million parameters" in about and f"longgraft serve {SUGGESTED} (491 MB" in about


def test_a_phone_shows_the_answer_before_the_speed_and_scrolls_in_one_direction(opened):
    opened.screen(390, 844)
    tops = opened.js(
        "['ask', 'answer-card', 'figures', 'tree-card'].map("
        "id => document.getElementById(id).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    assert opened.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_figures_sent_while_decoding_end_at_the_final_statistics():
    asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.0, "seed": 7, "compare": True}
    lines = asking(lambda http: http.post("/watch", json=asked), session()).text.split("\n\n")
    events = [(name[7:], json.loads(told[6:])) for name, told in (line.split("\n") for line in lines[:-1])]
    names = list(dict.fromkeys(name for name, _ in events))
    assert names == ["start", "read", "step", "done", "plain", "compared", "end"]
    of = {name: told for name, told in events}  # the last of each
    stats, step, plain = of["done"]["stats"], of["step"], of["plain"]
    assert (step["new_tokens"], step["steps"], step["mat"]) == (20, stats["steps"], stats["mat"])
    assert (of["start"]["max_tokens"], of["start"]["prompt_tokens"]) == (20, len(PROMPT)) and stats["steps"] < 19
    assert (plain["new_tokens"], plain["steps"], plain["mat"]) == (20, 19, 0)
    assert of["start"]["break_even"][:2] == [[1, 1.0], [2, 1.02]]
    compared = of["compared"]
    assert compared["identical"] and compared["first_divergence"] is None and not compared["may_differ"]
    assert [told["read"] for name, told in events if name == "read"][:3] == [17, 34, 51]


def test_the_page_is_not_told_the_folder_of_the_model():
    about = ("/home/me/models/fox on cpu",)
    engine = Engine(Lane(Target(toy_target().model, "/home/me/models/fox"), PlainDecoding(), Clock()))
    one = Session(engine, characters(), about)
    told = asking(lambda http: http.get("/watch"), one).json()
    assert told == {"about": ["fox on cpu"], "chat": True}


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stop", [(), ("→ y;", "zz"), ("return z",)])
def test_texts_of_tokens_join_to_those_of_steps_and_each_letter_belongs_to_its_last_byte(size, stop):
    ids, detokenizer, shares = list(TEXT.encode()), Detokenizer(Bytes(), stop), Spans(Bytes())
    shown: dict[int, str] = {}
    for i in range(0, len(ids), size):
        new, given = [], ""
        for token in ids[i : i + size]:
            new.append(token)
            given += detokenizer.push([token])
            if detokenizer.stopped:
                break
        last = detokenizer.stopped or i + size >= len(ids)
        given += detokenizer.finish() if last else ""
        bits = [ORIGINS[(i + n) % 3] for n in range(len(new))]
        pieces = shares.push(Step(tokens=tuple(new), origins=tuple(bits), text=given))
        assert "".join(piece["text"] for piece in pieces) == given
        assert {piece["at"] for piece in pieces} >= set(range(i, i + len(new)))
        for piece in pieces:
            assert piece["origin"] == WORDS[ORIGINS[piece["at"] % 3]]
            shown[piece["at"]] = shown.get(piece["at"], "") + piece["text"]
        if detokenizer.stopped:
            break
    whole, at = detokenizer.text, 0
    for letter in whole:  # each belongs to its last byte
        at += len(letter.encode())
        assert letter in shown[at - 1]
    assert "".join(shown[at] for at in sorted(shown)) == whole


def test_incomplete_bytes_at_the_end_belong_to_the_last_token():
    shares = Spans(Bytes())
    assert shares.push(Step(tokens=(104, 0xC3), origins=(ROOT, DRAFT), text="h")) == [
        {"at": 0, "origin": "target", "text": "h"},
        {"at": 1, "origin": "drafted", "text": ""},
    ]
    assert shares.push(Step(tokens=(0xA9, 0xF0), origins=(DRAFT, RETRIEVED), text="é\ufffd")) == [
        {"at": 2, "origin": "drafted", "text": "é"},
        {"at": 3, "origin": "retrieved", "text": "\ufffd"},
    ]


def test_a_picture_ends_where_the_answer_does():
    tree = ProposalTree.build([40, 41, 42, 43], [-1, 0, 1, 0], [0.0, -0.5, float("nan"), -2.0], [ROOT, 2, 4, 6])
    of = Pictures(characters()).of
    whole = of(Step(tokens=(41, 42, 50), text="", tree=tree, path=(0, 1, 2)))
    assert (whole["path"], whole["bonus"], whole["scores"]) == ((0, 1, 2), "Q", [0.0, -0.5, None, -2.0])
    assert whole["tokens"] == ["G", "H", "I", "J"] and whole["origins"] == ["target", "drafted", "retrieved", "both"]
    cut = of(Step(tokens=(41,), text="", tree=tree, path=(0, 1, 2)))
    assert (cut["path"], cut["bonus"]) == ((0, 1), None)
    assert of(Step(read=9)) is None
