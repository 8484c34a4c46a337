"""Tests of the page at / in a real browser: what it shows, the keyboard, themes, and that it loads nothing else."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
from longgraft.serve.formats.markdown import MarkdownBlocks
from longgraft.serve.formats.token_origins import Pictures, Spans
from longgraft.target_model.model import Target
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

PROMPT, NEW = "def add(a, b):\n    return a <b> b\n" * 4, 90
ORIGINS = (DRAFT, RETRIEVED, DRAFT | RETRIEVED)
WORDS = {ROOT: "target", DRAFT: "drafted", RETRIEVED: "retrieved", DRAFT | RETRIEVED: "both"}
IDLE = "!document.querySelector('#run').disabled"
WRONG_KEY = "!document.querySelector('#wrong-key').hidden"


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
    reopened(page)
    send_raw(page)
    return page


def reopened(page: Page) -> None:
    """Loads the page again, and waits until it knows the model."""
    page("Page.reload")
    page.until("document.readyState === 'complete' && document.querySelector('#model')?.textContent")


def send_raw(page: Page) -> None:
    """Unticks the chat, which the page ticks once it knows that the model has a chat template."""
    page.until("document.querySelector('#chat').checked")
    page.js("document.querySelector('#chat').click()")


def run(page: Page, new: int = NEW, prompt: str = PROMPT) -> None:
    """Starts a run by keyboard, from the prompt."""
    page.js(f"(document.querySelector('#max_tokens').value = {new}, document.querySelector('#prompt').focus())")
    page.type(prompt)
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


def value(page: Page, name: str) -> str:
    return page.js(f"document.querySelector('#{name}').value")


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
    opened.js("document.querySelector('#listing summary').focus()")
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
    while focused(opened) != "compare":
        opened.press("Tab")
    opened.press(" ")
    run(opened, 40)
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
    assert text(opened, "even-about").endswith(" rows (dot)") and "Above the line" in opened.js("$('even').title")


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
    while focused(opened) != "theme":
        opened.press("Tab", SHIFT)
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
        assert value(opened, "prompt") == prompt and not opened.js("turns.length")  # to be mended and sent again
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
        assert not page.js("sessionStorage.getItem('key')")
        page.open(f"{address}/?")
        for key in ("wrong", "open sesame"):
            page.until(f"document.querySelector('#locked').open && {WRONG_KEY} === {json.dumps(key != 'wrong')}")
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
    opened.js(
        "(document.querySelector('#more').open = document.querySelector('#settings').open = true, "
        "document.querySelector('#prompt').value = 'x', sized(), document.querySelector('#more summary').focus())"
    )
    order = ["summary"]
    while order[-1] != "body":
        line = opened.js("(style => style.outlineStyle + style.outlineWidth)(getComputedStyle(document.activeElement))")
        assert line == "solid2px", order
        opened.press("Tab")
        order.append(
            focused(opened)
            or opened.js("document.activeElement.type && document.activeElement.textContent")
            or opened.js("document.activeElement.localName")
        )
    conversation = ["turns", "Edit", "Copy", "Retry", "Inspect"]
    message = ["prompt", "run", "example", "open", "clear", "compare", "summary"]
    settings = ["max_tokens", "temperature", "seed", "stop", "chat"]
    inspector = ["drafted", "retrieved", "both", "target", "answer", "step", "canvas", "summary"]
    header = ["summary", "theme", "anew", "export"]
    assert order == [*header, *conversation, *message, *settings, *inspector, "body"]


@pytest.mark.parametrize("chat", [False, True])
def test_example_is_a_program_with_a_request_for_chats(opened, chat):
    if chat:
        opened.js("document.querySelector('#chat').click()")
    opened.js("document.querySelector('#example').click()")
    opened.until(f"{IDLE} && document.querySelector('#trouble').textContent.endsWith('Shorten it.')")  # the toy
    assert value(opened, "prompt").endswith("attribute limit to capacity." if chat else '"""Remove all items."""\n')
    assert opened.js("document.querySelector('#compare').checked")


def test_the_embedded_model_continues_the_example_and_its_page_says_that_it_is_a_toy(page):
    with listening(load(tell=False)) as (address, _):
        page.open(f"{address}/")
        page.until("document.querySelector('#model').textContent")
        page.js("document.querySelector('#example').click()")
        page.until(f"{IDLE} && !document.querySelector('#times').hidden")
        said = text(page, "status")
        assert said.startswith("Done. Plain decoding says the same; this was ") and "repeats itself" not in said
        assert int(text(page, "new")) == 64 and int(text(page, "steps")) < 63
        assert (text(page, "model"), text(page, "chosen")) == ("embedded", "graft-x, on cpu")
        assert "a toy of 7 million parameters" in text(page, "toy") and "(491 MB" in text(page, "toy")
        assert page.js("document.querySelector('#toy code').textContent") == f"longgraft serve {SUGGESTED}"
        assert "embedded on cpu in float32" in text(page, "details")


@pytest.mark.parametrize("size", [(1280, 720), (1300, 900), (390, 844)])
def test_nothing_of_the_page_is_out_of_view(opened, size):
    """The conversation and the inspector scroll for themselves; the message and the speed stay in view."""
    opened.screen(*size)
    run(opened, 80)
    finished(opened)
    opened.js("($('model').textContent = 'some-long-'.repeat(8), $('more').open = true)")
    assert opened.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    opened.js("($('model').textContent = 'llama', $('more').open = false)")
    assert opened.js("document.documentElement.scrollHeight <= document.documentElement.clientHeight")
    assert seen_whole(opened, "run") and seen_whole(opened, "settings")
    if size[0] < 1000:
        assert not opened.js("document.querySelector('#inspector').checkVisibility()")
        opened.js("[...document.querySelectorAll('.inspect')].at(-1).click()")
        assert not opened.js("document.querySelector('#talk').checkVisibility()") and seen_whole(opened, "legend")
        tops = opened.js("['answer-card', 'figures', 'tree-card'].map(id => $(id).getBoundingClientRect().top)")
        assert tops == sorted(tops)
        opened.js("document.querySelector('#to-talk').click()")
        assert seen_whole(opened, "run")
    else:
        assert all(seen_whole(opened, name) for name in ("rate", "chart", "facts", "which"))


def seen_whole(page: Page, name: str) -> bool:
    """Returns True if an element lies within the window."""
    return page.js(
        f"(box => box.width > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth)"
        f"($('{name}').getBoundingClientRect())"
    )


ANSWER = (
    "# A *list*\n\n1. one\n2. <b onclick='x()'>two</b>\n\n```python\nx = '<i>'\n```\n\n"
    "| a | b |\n|--:|---|\n| 1 | [site](https://a.example) [bad](javascript:x) ![p](http://b.example/p.png) |\n"
)


def answers_with(page: Page, answer: str, known: int = 0, **more: object) -> None:
    """Lets the page hear this answer, as the server would tell it, to everything that it sends; see `sent`.

    more: fields of the event `done`, and those of `compared`, if it is given; text after which the answer breaks off
    """
    blocks = MarkdownBlocks()
    blocks.push(answer)
    compared = more.pop("compared", None)
    stats = {"new_tokens": 3, "steps": 2, "mat": 0.5, "prefill_seconds": 1.0, "decode_seconds": 1.0}
    stats |= {
        "decode_tokens_per_second": 2.0,
        "reused_tokens": known,
        "prompt_tokens": 1633,
        "peak_memory_bytes": 2**30,
    }
    step = {"new_tokens": 3, "steps": 2, "seconds": 1.0, "mat": 0.5, "tree": None}
    behind = more.pop("more_text", "")
    events = [
        ("start", {"prompt_tokens": 1633, "max_tokens": 9, "break_even": []}),
        ("step", step | {"tokens": [{"at": 0, "origin": "retrieved", "text": answer}]}),
        ("text", blocks.rendered()),
        ("done", {"finish_reason": "eos", "stats": stats, "loops": False} | more),
        *([("compared", compared)] if compared else []),
        ("end", {}),
    ]
    if behind:
        rest = [{"at": 3, "origin": "target", "text": behind}]
        events[3:] = [("step", step | {"tokens": rest}), ("error", {"message": "Broken."}), ("end", {})]
    lines = "".join(f"event: {name}\ndata: {json.dumps(told)}\n\n" for name, told in events)
    page.js(
        "(window.sent = [], window.fetch = async (_, {body}) => "
        f"(sent.push(JSON.parse(body)), new Response({json.dumps(lines)})))"
    )


def ask_in_chat(page: Page, message: str) -> None:
    """Sends a chat message by keyboard, and waits for its answer."""
    page.js("($('chat').checked || $('chat').click(), $('prompt').focus())")
    page.type(message)
    page.press("Enter")
    page.until(f"{IDLE} && !$('prompt').value")


def test_an_answer_is_laid_out_and_its_markup_stays_text(opened):
    answers_with(opened, ANSWER)
    ask_in_chat(opened, "hello")
    body = "document.querySelector('.turn.assistant .body')"
    texts = {
        "h3 em": "list",
        "li:nth-child(2)": "<b onclick='x()'>two</b>",
        ".code p span": "python",
        "pre": "x = '<i>'\n",
        "td[align=right]": "1",
        "td:last-child": "site [bad](javascript:x) !p",
    }
    assert {place: opened.js(f"{body}.querySelector('{place}').textContent") for place in texts} == texts
    links = opened.js(f"[...{body}.querySelectorAll('a')].map(a => [a.href, a.target, a.rel])")
    assert links[0] == ["https://a.example/", "_blank", "noopener noreferrer"]
    assert not opened.js(f"{body}.querySelectorAll('b, i, img').length") and not opened.said
    opened.js(f"{body}.querySelector('.code button').click()")
    opened.until("/Copied|Selected/.test($('status').textContent)")


def test_a_conversation_is_sent_whole(opened):
    answers_with(opened, "It is *3*.", known=1535)
    ask_in_chat(opened, "one")
    ask_in_chat(opened, "two")
    answer = {"role": "assistant", "content": "It is *3*."}
    assert opened.js("sent[1].messages") == [
        {"role": "user", "content": "one"},
        answer,
        {"role": "user", "content": "two"},
    ]
    assert opened.js("document.querySelector('.turn:last-child .aside').textContent") == (
        "1,535 of 1,633 tokens were known \u00b7 3 tokens \u00b7 2.0 tokens/s"
    )
    # An earlier message is changed, and what followed it goes.
    opened.js("document.querySelectorAll('.turn.user button')[0].click()")
    assert value(opened, "prompt") == "one" and not opened.js("$('editing').hidden")
    ask_in_chat(opened, " more")
    assert opened.js("sent.at(-1).messages") == [{"role": "user", "content": "one more"}]
    assert opened.js("document.querySelectorAll('.turn').length") == 2 and opened.js("$('editing').hidden")
    # Another answer where one is drawn takes another seed.
    opened.js(
        "($('temperature').value = 1, "
        "[...document.querySelectorAll('.turn button')].find(b => b.textContent === 'Retry').click())"
    )
    opened.until(f"{IDLE} && sent.length === 4")
    assert opened.js("[sent[3].messages, sent[3].seed]") == [[{"role": "user", "content": "one more"}], 1]


def test_a_refused_message_leaves_the_conversation_as_it_was(opened):
    answers_with(opened, "yes")
    ask_in_chat(opened, "one")
    ask_in_chat(opened, "two")
    opened.js(
        "(document.querySelectorAll('.turn.user button')[0].click(), $('prompt').value = 'x'.repeat(600), "
        'window.fetch = async () => new Response(\'{"error": {"message": "No."}}\', {status: 400}))'
    )
    opened.press("Enter")
    opened.until("!$('trouble').hidden")
    assert text(opened, "trouble") == "No." and value(opened, "prompt") == "x" * 600
    assert opened.js("turns.map(turn => turn.text)") == ["one", "yes", "two", "yes"]
    assert opened.js("editing") == 0 and not opened.js("$('editing').hidden")


def test_nothing_that_was_written_is_lost(opened):
    answers_with(opened, "yes")
    ask_in_chat(opened, "one")
    opened.type("half")
    edit = "document.querySelector('.turn.user button').click()"
    opened.js(edit)
    opened.js("$('leave').click()")
    assert value(opened, "prompt") == "half"
    opened.js("take([new File(['a file'], 'a.txt')])")
    opened.until("$('prompt').value !== 'half'")
    assert value(opened, "prompt") == "a file\nhalf"
    opened.js(edit)
    opened.press("Enter")
    opened.until(f"{IDLE} && sent.length === 2")
    assert value(opened, "prompt") == "a file\nhalf"
    opened.js("$('example').click()")
    opened.until(f"{IDLE} && sent.length === 3")
    assert value(opened, "prompt") == "a file\nhalf"


def test_a_reload_in_mid_answer_keeps_what_was_answered_until_then(page):
    gate = Gate(12)
    with listening(session(), gate) as (address, _):
        page.open(f"{address}/")
        page.until("$('chat').checked")
        page.type(PROMPT)
        page.press("Enter")
        page.until("turns.at(-1)?.text")
        shown = page.js("turns.at(-1).text")
        reopened(page)
        gate.allow()
        assert page.js("turns.map(turn => turn.role)") == ["user", "assistant"] and not value(page, "prompt")
        assert page.js("turns[1].text").startswith(shown) and text(page, "finish") == "stopped"
        # The message of an answer that has not begun is written again.
        page.js("(window.fetch = () => new Promise(() => {}), $('prompt').focus())")
        page.type("next")
        page.press("Enter")
        page.until("!!running")
        reopened(page)
        assert page.js("turns.length") == 2 and value(page, "prompt") == "next"


def test_text_behind_the_last_html_of_a_broken_answer_is_shown_and_kept(opened):
    answers_with(opened, "*a*", more_text=" <b>\nend")
    ask_in_chat(opened, "one")
    for _ in range(2):
        assert opened.js("document.querySelector('.turn.assistant .body').textContent") == "a\n <b>\nend"
        assert opened.js("turns[1].meta.textContent").endswith("ended by an error")
        reopened(opened)


@pytest.mark.parametrize("kept", ["{", "{}", "[{}]", '[{"role": "assistant"}]', "[1]"])
def test_a_stored_conversation_of_another_version_is_left(opened, kept):
    opened.js(f"(localStorage.setItem('conversation', {kept!r}), 0)")
    reopened(opened)
    assert text(opened, "trouble").startswith("The stored conversation cannot be read;") and not opened.said
    send_raw(opened)
    run(opened, 5)
    finished(opened)


def test_each_of_two_tabs_keeps_its_conversation(opened):
    answers_with(opened, "yes")
    ask_in_chat(opened, "one")
    opened.until("sessionStorage.getItem('draft') === ''")
    opened.js("(localStorage.setItem('conversation', '[]'), localStorage.setItem('draft', 'other'))")
    reopened(opened)
    assert opened.js("turns.length") == 2 and not value(opened, "prompt")


def test_without_storage_the_page_works(opened):
    blocked = (
        "for (const name of ['localStorage', 'sessionStorage']) delete Window.prototype[name], delete window[name]"
    )
    script = opened("Page.addScriptToEvaluateOnNewDocument", source=blocked)
    try:
        reopened(opened)
        assert opened.js("typeof localStorage") == "undefined"
        run(opened, 5)
        finished(opened)
        assert text(opened, "status").endswith("This browser cannot store the conversation; Export saves it.")
    finally:
        opened("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_the_focus_is_never_lost(opened):
    answers_with(opened, "yes")
    opened.type("one")
    for button in ("$('run')", "[...document.querySelectorAll('.turn button')].find(b => b.textContent === 'Retry')"):
        opened.js(f"(button => (button.focus(), button.click(), window.at = document.activeElement.id))({button})")
        assert opened.js("at") == "halt"
        opened.until(IDLE)
        assert focused(opened) == "prompt"
    opened.screen(390, 844)
    opened.js("(button => (button.focus(), button.click()))(document.querySelector('.inspect'))")
    assert focused(opened) == "answer"


def test_an_empty_chat_message_is_refused(opened):
    opened.js("($('chat').click(), $('prompt').focus())")
    opened.press("Enter")
    opened.until("!$('trouble').hidden")
    assert text(opened, "trouble") == "The message is empty. Write one."


def test_a_reload_keeps_the_conversation_and_the_message_that_is_written(opened):
    run(opened, 40)
    finished(opened)
    shown, figures = spans(opened), text(opened, "facts")
    opened.js("$('prompt').focus()")
    opened.type("half a mess")
    opened.until("localStorage.getItem('draft') === 'half a mess'")
    reopened(opened)
    assert value(opened, "prompt") == "half a mess"
    assert opened.js("turns.map(turn => turn.text)") == [PROMPT, "".join(piece for _, piece in shown)]
    assert (spans(opened), text(opened, "facts")) == (shown, figures)
    assert opened.js("document.querySelector('.turn.assistant .body').textContent") == "".join(p for _, p in shown)
    assert text(opened, "no-tree") == "The trees of an answer are kept until the page is left."


def test_a_conversation_is_exported_and_a_new_one_begins(opened):
    answers_with(opened, "It is *3*.", known=1535)
    ask_in_chat(opened, "one")
    opened.js(
        "(window.made = [], URL.createObjectURL = blob => { made.push(blob.text()); return '#'; }, $('export').click())"
    )
    told = json.loads(opened.js("made[0]"))
    assert [(turn["role"], turn["text"]) for turn in told["turns"]] == [("user", "one"), ("assistant", "It is *3*.")]
    assert told["turns"][1]["seen"]["pieces"] == [["It is *3*.", "retrieved", 2]]
    assert told["turns"][1]["seen"]["known"] == 1535 and told["model"] == "llama"
    opened.js("$('anew').click()")
    assert opened.js("turns.length") == 0 and text(opened, "steps") == "\u2013"
    opened.js("$('anew').click()")  # it can be brought back
    assert opened.js("turns.length") == 2 and text(opened, "steps") == "2"


def test_every_answer_can_be_inspected(opened):
    for number in (20, 40):
        run(opened, number)
        finished(opened)
    assert text(opened, "new") == "40"
    opened.js("[...document.querySelectorAll('.inspect')][0].click()")
    assert text(opened, "new") == "20" and len("".join(piece for _, piece in spans(opened))) == 20
    assert text(opened, "which").endswith(f" of {text(opened, 'steps')}")
    assert opened.js("document.querySelector('.inspected') === document.querySelectorAll('.turn')[1]")


def test_a_loop_has_no_ratio(opened):
    compared = {
        "identical": True,
        "first_divergence": None,
        "may_differ": "",
        "plain_tokens_per_second": 1.0,
        "speedup": 9.0,
    }
    for loops, ratio, caption in (
        (False, "9.00\u00d7", "this method"),
        (True, "\u2013", "in a loop, which is no speed"),
    ):
        answers_with(opened, "a", loops=loops, compared=compared)
        ask_in_chat(opened, "x")
        assert (text(opened, "speedup"), text(opened, "rate-about")) == (ratio, caption)
        below = opened.js("document.querySelector('.turn:last-child .aside').textContent")
        assert ("tokens/s" in below) is not loops


def test_several_dropped_files_are_taken_but_for_the_bad_ones(opened):
    opened.js(
        "take([new File(['one'], 'a.txt'), new File([new Uint8Array([255, 0])], 'b.bin'), new File(['two'], 'c.txt')])"
    )
    opened.until("$('prompt').value")
    assert value(opened, "prompt") == "one\ntwo" and text(opened, "trouble").startswith("b.bin is no text in UTF-8.")
    assert text(opened, "status") == "2 of 3 files are in the message, one after the other."


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 720), (390, 844)])
def test_axe_finds_nothing(opened, theme, size):
    """Axe checks roles, names and contrast."""
    place = os.environ.get("AXE_CORE", "")
    if not place:
        pytest.skip("AXE_CORE is not set to axe-core's axe.min.js: npm install axe-core")
    opened.screen(*size)
    opened.prefers(color_scheme=theme)
    opened.js(Path(place).read_text() + "; 0")
    answers_with(opened, ANSWER)
    for prepared in (
        "0",
        f"send(0, {ANSWER * 9!r})",
        "($('more').open = $('settings').open = true)",
        "look_at('inspector')",
    ):
        opened.js(f"Promise.resolve({prepared}).then(() => 0)")
        found = opened.js("axe.run(document).then(r => r.violations.map(v => v.id + ' ' + v.nodes[0].html))")
        assert not found


@pytest.mark.parametrize("seed", range(3))
def test_a_text_in_pieces_is_laid_out_as_the_whole(seed):
    parts = [
        "a",
        " ",
        "\n",
        "\n\n",
        "# ",
        "- ",
        "1. ",
        "> ",
        "```",
        "    ",
        "|",
        "\n|--|",
        "---",
        "**",
        "`",
        "[a](http://b)",
        "\r\n",
    ]
    drawn = random.Random(seed)
    for _ in range(300):
        pieces = [drawn.choice(parts) for _ in range(20)]
        whole, grown, shown = MarkdownBlocks(), MarkdownBlocks(), []
        whole.push("".join(pieces))
        for piece in pieces:
            grown.push(piece)
            told = grown.rendered()
            shown[told["from"] :] = told["blocks"]
        assert shown == whole.rendered()["blocks"], pieces


@pytest.mark.parametrize(
    "hostile", ["[" * 60_000, "[a](" * 15_000, "**a " * 15_000, "- " * 30_000, "> " * 30_000, "> " * 60 + "a\n" * 2_000]
)
def test_no_text_takes_long_to_lay_out(hostile):
    blocks = MarkdownBlocks()
    blocks.push(hostile)
    began = time.process_time()
    blocks.rendered()
    assert time.process_time() - began < 1


def test_a_chat_is_told_as_html_too():
    asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
    both = asking(lambda http: http.post("/watch", json=asked | {"prompt": "y"}), session()).json()
    assert both["error"]["message"] == "prompt was given with messages. Leave one of them out."
    lines = asking(lambda http: http.post("/watch", json=asked), session()).text.split("\n\n")
    events = [(name[7:], json.loads(told[6:])) for name, told in (line.split("\n") for line in lines[:-1])]
    shown, answer = [], ""
    for name, told in events:
        if name == "text":
            shown[told["from"] :] = told["blocks"]
        if name == "step":
            answer += "".join(piece["text"] for piece in told["tokens"])
    whole = MarkdownBlocks()
    whole.push(answer)
    assert shown == whole.rendered()["blocks"] and answer


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
    assert told == {
        "model": "fox",
        "chosen": "unnamed, on cpu",
        "toy": "",
        "details": ["fox on cpu"],
        "chat": True,
    }


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
