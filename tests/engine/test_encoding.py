"""Prompts become ids, or one sentence names what was given instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys.served import characters
from toys.sessions import answered, toy_session
from toys.tokenizers import byte_tokenizer

from longgraft.engine import predicted_output
from longgraft.engine.encoder import Encoder, continuation, stop_strings


class Letters:
    """A tokenizer of one id per character."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 90 for c in text]}

    def apply_chat_template(self, messages, **_) -> dict[str, list[int]]:
        return self("".join(f"{m['role']}:{m['content']}" for m in messages))


ENCODER = Encoder(Letters(), 96, "toy")


@pytest.mark.parametrize(
    "prompt, ids",
    [
        ("ab", [7, 8]),
        ([0, 95], [0, 95]),
        ([3, 4], [3, 4]),
        ((3, 4), [3, 4]),
        (torch.tensor([3, 4]), [3, 4]),
        (torch.tensor([[3, 4]]), [3, 4]),
        (np.array([3, 4], dtype=np.int32), [3, 4]),
        ([np.int64(3)], [3]),
        ([{"role": "u", "content": "a"}], [27, 58, 7]),
    ],
)
def test_text_chats_and_ids_of_every_kind_are_prompts(prompt, ids):
    assert ENCODER.encode(prompt) == ids


@pytest.mark.parametrize(
    "prompt, said",
    [
        (torch.tensor([[1, 2, 3], [4, 5, 6]]), r"shape \(2, 3\); one prompt of shape \(T,\) or \(1, T\)"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), "shape"),
        (torch.tensor(3), "shape"),
        (torch.tensor([1.5, 2.0]), "1.5, a float"),
        ([1, 2.0], "2.0, a float"),
        ([True, False], "True, a bool"),
        (torch.tensor([True]), "True, a bool"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "on the meta device, which holds no ids"),
        (b"\x01\x02", "is a bytes"),
        (memoryview(b"\x01"), "is a memoryview"),
        (7, "is a int"),
        (None, "is a NoneType"),
        (["a", "b"], "'a', a str"),
        ([], "The prompt is empty"),
        ("", "The prompt is empty"),
        (torch.tensor([], dtype=torch.int64), "is empty"),
        ([96], "knows 0 to 95"),
        ([-1], "from -1 to -1"),
        ("a\ud800", r"half a character \('\\ud800'\) at place 1"),
    ],
)
def test_an_invalid_prompt_is_refused(prompt, said):
    with pytest.raises(ValueError, match=said):
        ENCODER.encode(prompt)


def test_a_chat_is_encoded_up_to_where_its_answer_begins():
    tokenizer = characters()
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert Encoder(tokenizer, 96, "toy").encode(chat) == tokenizer("s:be kind\nu:hi\na:")["input_ids"]


@pytest.mark.parametrize(
    "message, said",
    [
        ({"content": "a"}, "^Message 2 has"),
        ({"role": "user"}, "^Message 2 has no content"),
        ({"role": "wizard", "content": "a"}, "chat template refuses these messages: no such role"),
    ],
)
def test_a_chat_is_refused_by_its_wrong_message(message, said):
    with pytest.raises(ValueError, match=said):
        Encoder(characters(), 96, "toy").encode([{"role": "user", "content": "hi"}, message])


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content.absent.more }}", "{{" + "(" * 50_000 + ")" * 50_000 + "}}"]
)
def test_a_template_that_fails_is_refused_in_one_sentence(template):
    tokenizer = characters(template)
    with pytest.raises(ValueError, match=r"^The model's chat template refuses these messages: "):
        Encoder(tokenizer, 96, "toy").encode([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("spaced", [True, False])
def test_text_that_follows_other_text_has_only_its_own_space(spaced):
    tokenizer = byte_tokenizer(spaced=spaced)
    for text in ("", "is", " is", "\nis"):
        ids = continuation(tokenizer, text)
        assert len(ids) == len(text) and tokenizer.decode(ids) == text


def test_text_that_would_merge_with_a_line_end_is_encoded_alone():
    ids = {"\n": [1], "\nis": [2], "is": [3]}
    assert continuation(lambda text, **_: {"input_ids": ids[text]}, "is") == [3]


def test_a_prompt_without_a_tokenizer_must_be_ids():
    bare = Encoder(None, 96, "toy")
    assert bare.encode([1]) == [1]
    for prompt, said in (("a", "cannot be text"), ([{"role": "user", "content": "a"}], "cannot be chat messages")):
        with pytest.raises(ValueError, match=f"toy came without a tokenizer, so the prompt {said}"):
            bare.encode(prompt)


def test_a_prediction_is_encoded_without_the_token_that_begins_a_prompt():
    class Begun(Letters):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [95] * add_special_tokens + super().__call__(text)["input_ids"]}

    encoder = Encoder(Begun(), 96, "toy")
    assert encoder.encode("ab") == [95, 7, 8]
    assert predicted_output.encode_prediction(encoder, ["ab", "b", ""]) == [[7, 8], [8]]


def test_stop_strings_are_one_several_or_none():
    assert stop_strings(None) == stop_strings(()) == () and stop_strings("ab") == stop_strings(["ab"]) == ("ab",)
    for wrong in ("", [""], ["a", 3], 5):
        with pytest.raises(ValueError, match="A stop string is"):
            stop_strings(wrong)
    with pytest.raises(ValueError, match="The stop string has half a character"):
        stop_strings(["a", "b\ud800"])


def test_a_stop_string_that_is_no_token_is_searched_in_the_text():
    tokenizer = byte_tokenizer(special=("<end>",), plain=("<tool>",))  # without a token for what is unknown
    hidden = Encoder(tokenizer, len(tokenizer), "toy").hidden_tokens(["absent", "<end>", "<tool>", "a"])
    assert hidden == {tokenizer.convert_tokens_to_ids("<end>")}


def test_a_recording_of_unknown_ids_is_refused():
    with pytest.raises(ValueError, match="recorded continuation has token ids from 1 to 99"):
        toy_session("graft").generate([1, 2], 4, replay=[1, 99])
    with pytest.raises(ValueError, match="recorded continuation is 5; a list of token ids is needed"):
        toy_session("graft").generate([1, 2], 4, replay=5)


@pytest.mark.parametrize(
    "eos, said",
    [
        ("</s>", "list of end tokens holds '<', a str"),
        (1.5, "is a float. Give token ids"),
        ([1.5], "holds 1.5, a float"),
        (True, "holds True, a bool"),
        ([3, 96], "from 3 to 96, and .* knows 0 to 95"),
        (-1, "from -1 to -1"),
    ],
)
def test_end_tokens_that_the_model_cannot_predict_are_refused(eos, said):
    with pytest.raises(ValueError, match=said):
        toy_session("ar").open([1, 2], 4, eos=eos)


def test_one_end_token_may_be_given_alone():
    plain = answered(toy_session("ar"), [1, 2], 4).token_ids
    assert answered(toy_session("ar"), [1, 2], 4, eos=plain[0]).token_ids == plain[:1]
