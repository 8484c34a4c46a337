"""Python shows public names as a list, objects in one line each, and the nearest name for a wrong one."""

from __future__ import annotations

import copy
import pickle

import pytest
from toys.sessions import toy_prompt, toy_session

import longgraft


def test_dir_lists_the_public_names():
    assert {*longgraft.__all__, "__version__"} == set(dir(longgraft))


def test_a_session_s_repr_names_model_method_and_device():
    session = longgraft.load(tell=False, method="graft")
    assert repr(session) == "<Session of embedded with graft on cpu>"


def test_an_answer_s_repr_is_one_line_with_its_figures():
    session = longgraft.load(tell=False)
    answer = session.generate("def f(a, b):\n", max_new_tokens=30)
    shown = repr(answer)
    assert "\n" not in shown and len(shown) < 200
    assert f"{len(answer.token_ids)} tokens, {answer.stats.tokens_per_step:.2f} per step" in shown
    assert f"{answer.text[:40]!r}"[1:-1] in shown and f"ended by {answer.finish_reason}" in shown


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_that_is_copied_says_what_to_do_instead(copied):
    with pytest.raises(TypeError, match=r"llama cannot be pickled or copied.*longgraft\.load in the process"):
        copied(toy_session("ar"))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: longgraft.load(methd="ar"), "load has no argument 'methd'. Perhaps method is meant."),
        (
            lambda: longgraft.generate("a", max_tokens=3),
            "generate has no argument 'max_tokens'. Perhaps max_new_tokens is meant.",
        ),
        (lambda: longgraft.generate("a", zzz=3), "generate has no argument 'zzz'."),
        (
            lambda: toy_session("ar").generate(toy_prompt(5), max_tokens=3),
            "generate has no argument 'max_tokens'. Perhaps max_new_tokens is meant.",
        ),
        (
            lambda: list(toy_session("ar").stream(toy_prompt(5), temprature=1)),
            "generate has no argument 'temprature'. Perhaps temperature is meant.",
        ),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(call, message):
    with pytest.raises(TypeError) as refused:
        call()
    assert str(refused.value) == message


def test_chat_messages_without_a_template_are_refused_with_what_to_give():
    with pytest.raises(ValueError, match=r"has no chat template.*Give the whole text as one string"):
        longgraft.load(tell=False).generate([{"role": "user", "content": "a"}])
