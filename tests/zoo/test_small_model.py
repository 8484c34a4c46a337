"""A small model's memory gives the logits of its own forward behind committed tokens and a scratch chain."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from toys.models import VOCAB, small_model, toy_target
from toys.observations import seen
from toys.sessions import toy_prompt
from toys.zoo import medusa_heads

from longgraft.memories.draft_cache import MOST_WAITING
from longgraft.methods.needs import Missing, Sources, embedded
from longgraft.zoo.medusa.heads import MedusaConfig, MedusaHeads, load_medusa, save_medusa
from longgraft.zoo.medusa.methods import MEDUSA
from longgraft.zoo.small_model import SMALL, DraftModelCache


def memory(vocab: int = VOCAB) -> DraftModelCache:
    made = DraftModelCache(small_model(VOCAB), vocab)
    made.reset(400)
    return made


@torch.inference_mode()
def expected(tokens: list[int]) -> torch.Tensor:
    return small_model(VOCAB).model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_logits_of_a_small_model_equal_its_own_forward_behind_committed_tokens_and_chain():
    ids, small = toy_prompt(40), memory()
    small.observe(seen(ids[:20], prompt=True))
    assert small.cache.length == 20  # a prompt is read at once
    small.observe(seen(ids[20:25]))
    small.observe(seen(ids[25:27]))
    assert small.waiting == 7 and small.cache.length == 20
    close(small.extend(torch.tensor(ids[27:28])), expected(ids[:28]))
    close(small.extend(torch.tensor([5, 6])), expected([*ids[:28], 5, 6]))
    assert small.chain == 3 and small.waiting == 0
    small.back(2)
    close(small.extend(torch.tensor([9])), expected([*ids[:28], 5, 9]))


def test_committed_tokens_replace_the_scratch_chain():
    """Includes the last drafted token, after which nothing was drafted."""
    ids, small = toy_prompt(30), memory()
    small.observe(seen(ids[:20], prompt=True))
    small.extend(torch.tensor([ids[20]]))
    small.extend(torch.tensor([7]))
    small.observe(seen([ids[20], 7, 8]))  # 8 was drafted and never read
    close(small.extend(torch.tensor([3])), expected([*ids[:21], 7, 8, 3]))
    small.observe(seen([3]))
    small.begin()
    close(small.extend(torch.tensor([4])), expected([*ids[:21], 7, 8, 3, 4]))


def test_a_small_model_rewinds_also_in_the_middle_of_a_chain():
    ids, small = toy_prompt(30), memory()
    small.observe(seen(ids[:20], prompt=True))
    small.observe(seen(ids[20:22]))
    mark = small.mark()
    for _ in range(2):
        small.extend(torch.tensor([5]))
        small.observe(seen([5, 6]))
        small.extend(torch.tensor([7]))
        small.rewind(mark)
        assert small.chain == 0 and small.waiting == 2
    close(small.extend(torch.tensor([11])), expected([*ids[:22], 11]))
    mark = small.mark()
    small.extend(torch.tensor([8]))
    small.rewind(mark)  # guesses do not outlive it
    close(small.extend(torch.tensor([11])), expected([*ids[:22], 11]))
    small.observe(seen([11]))
    close(small.extend(torch.tensor([12])), expected([*ids[:22], 11, 12]))


def test_the_tokens_that_wait_for_a_small_model_are_bounded():
    small = memory()
    for _ in range(MOST_WAITING + 1):
        small.observe(seen([5]))
    assert small.waiting == 0 and small.cache.length == MOST_WAITING + 1


def test_logits_of_padded_vocabularies_are_fitted_to_the_target():
    narrow, wide = memory(VOCAB - 6), memory(VOCAB + 10)
    for small in (narrow, wide):
        small.observe(seen(toy_prompt(10), prompt=True))
    a, b = narrow.extend(torch.tensor([3])), wide.extend(torch.tensor([3]))
    assert len(a) == VOCAB - 6 and len(b) == VOCAB + 10
    assert torch.equal(a, b[: VOCAB - 6]) and b[VOCAB:].isneginf().all() and b[:VOCAB].isfinite().all()
    assert wide.extend(torch.tensor([VOCAB + 3]))[:VOCAB].isfinite().all()  # a token that it does not have


class Words:
    def __init__(self, **changes: int) -> None:
        self.vocabulary = {f"w{i}": i for i in range(VOCAB)} | changes

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        return {"w0": 0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model with a tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("small")
    tokenizer = AutoTokenizer.from_pretrained(embedded("target"))
    small_model(len(tokenizer)).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def test_a_small_model_of_another_tokenizer_is_refused(saved):
    folder, tokenizer = saved
    given, target = {SMALL.name: str(folder)}, toy_target()
    assert SMALL.load(Sources(target, given=given, tokenizer=tokenizer)).vocab_size == len(tokenizer)
    with pytest.raises(ValueError, match=r"another tokenizer than llama: 95 of 96 tokens differ"):
        SMALL.load(Sources(target, given=given, tokenizer=Words()))
    with pytest.raises(ValueError, match=r"has 4,096 tokens and llama 96, and no tokenizer says"):
        SMALL.load(Sources(target, given=given))
    with pytest.raises(Missing, match="Pass --with small-model=PATH"):
        SMALL.load(Sources(target))


def official(folder, heads: MedusaHeads, prefix: str = "") -> None:
    """Writes FasterDecoding's files: a state dict, and a configuration that names another number of heads."""
    folder.mkdir(exist_ok=True)
    torch.save(
        {prefix + name.removeprefix("heads."): t for name, t in heads.state_dict().items()},
        folder / "medusa_lm_head.pt",
    )
    (folder / "config.json").write_text(
        json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"})
    )


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_official_heads_have_output_layers_of_their_own(tmp_path, prefix):
    target, hidden = toy_target(), torch.randn(3, 32)
    heads = medusa_heads(target, heads=5, tied=False)
    official(tmp_path, heads, prefix)
    found = load_medusa(tmp_path, 32, VOCAB)
    assert found.config == MedusaConfig(32, VOCAB, 5, 1, False)
    block, linear = heads.heads[1]
    by_hand = linear(hidden + torch.nn.functional.silu(block.linear(hidden)))
    close(found.logits(hidden, target.logits)[:, 1], by_hand)


def test_tied_heads_use_the_output_layer_of_the_target(tmp_path):
    target, hidden = toy_target(), torch.randn(3, 32)
    heads = medusa_heads(target)
    save_medusa(heads, tmp_path, "llama")
    found = MEDUSA.load(Sources(target, given={MEDUSA.name: str(tmp_path)}))
    assert found.config == heads.config and found.config.tied
    linear = heads.heads[2][0].linear
    state = hidden + torch.nn.functional.silu(hidden @ linear.weight.T + linear.bias)
    close(found.logits(hidden, target.logits)[:, 2], target.head(state))
    fresh = MedusaHeads(MedusaConfig(32, VOCAB))
    close(fresh.logits(hidden, target.logits)[:, 3], target.logits(hidden))  # before any training


BROKEN = {
    "a cut file": (lambda t: t.pop("1.0.linear.bias"), "missing 1.0.linear.bias; unknown nothing"),
    "output layers lost": (lambda t: [t.pop(f"{h}.1.weight") for h in range(4)], "need tie_output: true"),
    "another target's": (lambda t: t.update({"0.1.weight": torch.zeros(97, 32)}), r"\(97, 32\); numbers .* \(96, 32\)"),
    "of another kind": (lambda t: t.update({"fc.weight": torch.zeros(2)}), "unknown fc.weight"),
    "diverged": (lambda t: t["2.0.linear.weight"].fill_(float("nan")), "NaN or infinite weights in heads.2.0"),
    "no heads at all": (lambda t: (t.clear(), t.update({"a": torch.zeros(1)})), "no tensor is a head's"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_broken_heads_are_refused_with_the_reason(tmp_path, damage):
    breaks, said = BROKEN[damage]
    official(tmp_path, medusa_heads(toy_target(), tied=False))
    tensors = torch.load(tmp_path / "medusa_lm_head.pt")
    breaks(tensors)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ValueError, match=said):
        load_medusa(tmp_path, 32, VOCAB)
    shutil.rmtree(tmp_path)
