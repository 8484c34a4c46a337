"""The common part of drafter trainers: a frozen target, its encoded texts, the run, and replay for measurements."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longgraft.config.settings import Settings
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.files.data_files import read_table
from longgraft.files.whole_files import write_whole
from longgraft.models.files import files_of
from longgraft.models.targets import load_target
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus, split_coded
from longgraft.yarn_drafters.training.distributed import SINGLE_PROCESS, World, sole_trainer
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.recipe import DistilledRecipe, Recipe
from longgraft.yarn_drafters.training.streams import held_out_rows


@dataclass(frozen=True)
class Frozen:
    """The target and texts of a run.

    Attributes:
        unseen: Validation text, or None.
    """

    world: World
    target: Target
    corpus: EncodedCorpus
    unseen: EncodedCorpus | None

    @classmethod
    @contextmanager
    def prepared(
        cls, recipe: Recipe, name: str, data: Sequence[Path], valid: Sequence[Path], out: Path, dtype: torch.dtype
    ) -> Iterator[Frozen]:
        """Loads the target `name` (as in `files_of`) and encodes the texts; `out` stays locked until the block ends.

        Args:
            data, valid: See `read_documents`.
        """
        world = World.join(recipe.device)
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        with sole_trainer(out, world):  # errors of folder and data are raised before a weight is read
            files = files_of(name)
            tokenizer = files.tokenizer
            with world.first_in_turn():
                corpus = encode_corpus(data, tokenizer, out / "corpus.npz")
                unseen = None
                if valid:
                    unseen = encode_corpus(valid, tokenizer, out / "valid.npz")
            # As it is decoded: a GGUF file's blocks on a CPU.
            where: dict[str, Any] = {"dtype": dtype, "device": str(world.device)}
            target = load_target(files, Settings(**where)).target
            target.model.requires_grad_(False)
            for texts in filter(None, (corpus, unseen)):
                _same_vocabulary(texts, target)
            yield cls(world, target, corpus, unseen)


class DistillingTrainer(Trainer):
    """A trainer of a drafter on a frozen target's distributions.  Subclasses make it, define the objective
    and write it.

    Attributes:
        recipes: Class of its settings.
        folder: Name of the result's folder inside the run's folder.
    """

    recipes: ClassVar[type[DistilledRecipe]]
    folder: ClassVar[str]
    recipe: Any

    def __init__(
        self,
        recipe: DistilledRecipe,
        target: Target,
        network: Any,
        corpus: EncodedCorpus,
        out: Path,
        unseen: EncodedCorpus | None = None,
        world: World = SINGLE_PROCESS,
    ) -> None:
        self.target = target
        self.network = network.to(target.device)
        by_muon: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                by_muon[self.by_muon(name, parameter)].append(parameter)
        groups = [{"params": by_muon[False], "lr": recipe.adam_lr}]
        super().__init__(
            recipe,
            network,
            muon_and_adam(by_muon[True], groups, recipe),
            corpus,
            out,
            {"target": target.name} | asdict(network.config),
            world,
        )
        if unseen is None:
            self.unseen = {}
        else:
            self.unseen = held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)

    @classmethod
    def train(
        cls,
        recipe: Any,
        model: str | Path,
        data: Sequence[Path],
        valid: Sequence[Path],
        out: Path,
        dtype: torch.dtype = torch.float32,
        until: float | None = None,
    ) -> Path:
        """Trains in folder `out`, or resumes there.

        Args:
            recipe: Settings, an instance of `recipes`.
            model: Hub id or folder of the target model.
            data, valid: Training and validation text; see `read_documents`.
            out: Folder of the run.
            dtype: Number type of the frozen target.
            until: Time of `time.monotonic` at which the result shall be written; the schedule follows it.

        Returns:
            The drafter's folder.
        """
        out = Path(out)
        name = str(model)
        with Frozen.prepared(recipe, name, data, valid, out, dtype) as prepared:
            run = cls(
                recipe,
                prepared.target,
                cls.fresh(recipe, prepared.target, prepared.corpus),
                prepared.corpus,
                out,
                prepared.unseen,
                prepared.world,
            )
            run.run(
                until,
                target=name,
                corpus_tokens=len(prepared.corpus.tokens),
                parameters=sum(p.numel() for p in run.network.parameters()),
                **run.about(prepared.unseen or prepared.corpus),
            )
            if prepared.world.first:
                run.write(out / cls.folder)
                training = {
                    "target": name,
                    "tokens": run.state.tokens,
                    "steps": run.state.step,
                    "recipe": read_table(out / "recipe.json"),
                }
                write_whole(out / cls.folder / "training.json", json.dumps(training, indent=1) + "\n")
        return out / cls.folder

    @staticmethod
    @abstractmethod
    def fresh(recipe: Any, target: Target, corpus: EncodedCorpus) -> nn.Module:
        """Returns an untrained drafter in float32."""

    @abstractmethod
    def proposer(self, network: Any) -> tuple[Proposer, int]:
        """Returns a proposer that drafts with the network, and the number of nodes of its trees."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Saves the drafter in bfloat16 and loads it again, strictly."""

    def about(self, corpus: EncodedCorpus) -> dict[str, Any]:
        """Returns further fields of the log's first line.

        Args:
            corpus: Unseen text, or the training data without any.
        """
        return {}

    def by_muon(self, name: str, parameter: nn.Parameter) -> bool:
        """Returns True if Muon trains this parameter: a matrix that is no output layer.  AdamW trains the others."""
        return parameter.ndim == 2

    @torch.no_grad()
    def measure(self) -> Figures:
        """Returns the objective's figures and the accepted length (MAT) in replay, per kind of unseen text."""
        measured: Figures = {}
        for kind, coded in self.unseen.items():
            figures = self.figures_of(coded)
            if self.recipe.mat_prompts:
                drafter, nodes = self.proposer(as_decoded(self.network, self.target))
                rows = torch.from_numpy(coded)[: self.recipe.mat_prompts]
                figures["mat"] = replayed(self.target, drafter, rows, self.recipe.mat_tokens, nodes)
            measured |= {f"{kind}_{name}": figure for name, figure in figures.items()}
        return measured


@torch.no_grad()
def observed(target: Target, layers: Sequence[int], tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the target's features [B, S, A * Ht] (the inputs of these layers) and final hidden states [B, S, Ht]."""
    if target.weights != "float" and bool((positions == torch.arange(tokens.shape[1])).all()):
        return _as_decoded(target, layers, tokens)
    with target.inputs_of(tuple(layers)) as taken:
        # Without a mask transformers reads jumps of positions as packed sequences; a mask of ones is ignored.
        hidden = target.model.get_decoder()(
            tokens, position_ids=positions, use_cache=False, attention_mask=torch.ones_like(tokens)
        ).last_hidden_state
    return torch.cat([taken[layer] for layer in layers], dim=-1), hidden


def _as_decoded(target: Target, layers: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `observed` does, of rows without jumps of positions.

    A pass of the engine has compiled layers: beside weights in blocks it is 1.4 to 1.7 times as fast as the
    model's own code, and has the values of decoding.
    """
    segments = [Segment(ProposalTree.chain(row), target.cache(len(row)), "none") for row in tokens]
    with torch.autocast(target.device.type, enabled=False):
        reports = target.run(segments, Wants(tuple(sorted(layers)), final=True))
    features = [torch.cat([report.hidden[layer] for layer in layers], dim=-1) for report in reports]
    finals = [report.final for report in reports if report.final is not None]
    return torch.stack(features), torch.stack(finals)


@torch.no_grad()
def check_logits(target: Target) -> None:
    """Raises ValueError if `Target.logits` of the model's own hidden states does not equal its own logits.

    The engine's passes are not compared: beside weights in blocks they round activations to bytes, which changes some
    logits by more than any tolerance that finds a missing scale.
    """
    tokens = torch.arange(8, device=target.device)[None]
    ours = target.logits(target.model.get_decoder()(tokens, use_cache=False).last_hidden_state)
    expected = target.model(tokens, use_cache=False).logits
    if not torch.allclose(ours, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item()):
        raise ValueError(
            f"{target.name} computes its logits in a way of its own, which the trainer does not "
            "know; a head trained on other logits would be wrong. Use another target."
        )


def replayed(target: Target, proposer: Proposer, rows: Tensor, new: int, budget: int) -> float:
    """Returns the accepted draft tokens per step when each coded row's last `new` tokens are replayed."""
    session = Session(Engine(Lane(target, proposer, Clock()), budget), None)
    new = min(new, rows.shape[1] // 2)
    accepted = 0
    steps = 0
    for row in torch.where(rows < 0, ~rows, rows).tolist():
        stats = session.generate(row[:-new], new, replay=row[-new:]).stats
        accepted += sum(stats.accepted_per_step)
        steps += stats.steps
    return accepted / max(1, steps)


def as_decoded(network: nn.Module, target: Target) -> Any:
    """Returns a copy in the target's precision, as after loading; modules of the target are shared, not copied."""
    return copy.deepcopy(network, {id(module): module for module in target.model.modules()}).to(target.dtype)


def _same_vocabulary(corpus: EncodedCorpus, target: Target) -> None:
    """Raises ValueError if the corpus has ids without an embedding in the target."""
    largest = int(split_coded(corpus.tokens)[0].max())
    if largest >= target.vocab_size:
        raise ValueError(
            f"The tokenizer of {target.name} gives token {largest:,} in the training files, and "
            f"the model has {target.vocab_size:,}: they do not belong together. Fetch both "
            "again."
        )
