"""Sessions: one model and one method, ready to answer; the public interface, for one request at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

from longgraft.acceptance.constraints import Constraint, constraint
from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.acceptance.shaping import Shaping, TokenLogprob
from longgraft.config.known_names import check_names
from longgraft.corpora import Corpus, existing_corpus, open_corpus
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.encoder import Encoder, Prompt, stop_strings
from longgraft.engine.end_tokens import end_tokens
from longgraft.engine.engine import Engine
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.predicted_output import Prediction, encode_prediction
from longgraft.engine.prefix_files import needed, pin, read
from longgraft.engine.request import Request
from longgraft.engine.stats import Stats
from longgraft.engine.step import FinishReason, Step
from longgraft.files.new_paths import new_file
from longgraft.prefill.prefix_file import save
from longgraft.runtime.fingerprint import vocabulary
from longgraft.target_model.model import Target

SHOWN = 40  # characters of an answer in its repr
BAR_AFTER = 1.0  # seconds of a prefill after which a progress bar is shown


@dataclass(frozen=True)
class Generation:
    """An answer.

    Attributes:
        text: The text, which ends before a stop string.
        token_ids: Its tokens, up to the one that completed it, or up to the end token.
        stats: Costs and acceptance.
        finish_reason: stop, length, eos or cancelled.
        logprobs: One entry per token, if they were asked for.
        prompt_logprobs: One entry per token of the prompt after the first, if they were asked for.
    """

    text: str
    token_ids: list[int]
    stats: Stats
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def __repr__(self) -> str:
        """Returns one line: the beginning of the text, tokens, tokens per step, seconds, and why it ended."""
        text = self.text
        if len(text) > SHOWN:
            text = f"{text[:SHOWN]}..."
        stats = self.stats
        return (
            f"<Generation {text!r}: {len(self.token_ids):,} tokens, {stats.tokens_per_step:.2f} per step, read in "
            f"{stats.prefill_seconds:.2f} s, decoded in {stats.decode_seconds:.2f} s, ended by {self.finish_reason}>"
        )


@dataclass(frozen=True)
class Saved:
    """A saved prefix file: its tokens, its bytes, and the seconds that it took."""

    tokens: int
    bytes: int
    seconds: float


class Session:
    """A target with one method; `load` makes it.

    Its own requests are answered one at a time; `generate_all` and the server run several beside each other
    in the engine's lanes.  A request leaves no state on the model.

    Attributes:
        about: What was chosen, as lines for people.
        promise: exact, distribution or lossy, as in `longgraft.methods.method.Method`.
        method: The method's name.
        eos: Ids of the end tokens.
        default_corpus: Name of the corpus for requests that name none; None: no corpus.
        pass_seconds: (rows, prefix tokens) -> seconds of a target pass; None: the method does not decide by them.
    """

    def __init__(
        self, engine: Engine, tokenizer: Any, about: Sequence[str] = (), promise: str = "exact", method: str = "unnamed"
    ) -> None:
        """Takes the attributes of these names."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.about = tuple(about)
        self.promise = promise
        self.method = method
        # The model never predicts ids beyond its vocabulary.
        named = end_tokens(engine.target.model, tokenizer, engine.target.name)
        self.eos = tuple(token for token in named if token < engine.target.vocab_size)
        self.default_corpus: str | None = None
        self.pass_seconds: Callable[[int, int], float] | None = None
        self._corpora: dict[str, tuple[int, Corpus]] = {}  # (time of the file's change, corpus) by name
        self._encoder = Encoder(tokenizer, engine.target.vocab_size, engine.target.name)

    def __repr__(self) -> str:
        return f"<Session of {self.target.name} with {self.method} on {self.target.device}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A session of {self.target.name} cannot be pickled or copied: its model and caches are large, and "
            "belong to one process. Call longgraft.load in the process that needs one."
        )

    @property
    def target(self) -> Target:
        return self.engine.target

    @property
    def defaults(self) -> SamplingDefaults:
        """The sampling in the model's generation_config.json; raises ValueError if it cannot be used."""
        return SamplingDefaults.of(self.target.model, self.target.name)

    def sampling(self, **options: Any) -> Sampling:
        """Returns the sampling of a request, as `generate` makes it.

        Args:
            **options: Fields of `Sampling`.  Without a temperature the answer is greedy.  A sampled answer
                takes what is left out from the model's generation_config.json; a `Sampling` object is taken
                as it is.

        Raises:
            ValueError: a value is out of range, or would change nothing.
        """
        return self.defaults.sampling(options)

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the token ids of text, chat messages or token ids."""
        return self._encoder.encode(prompt)

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ValueError if the request does not fit the positions of the target or the drafter."""
        self.engine.check(prompt_tokens, max_new_tokens)

    def request(
        self,
        prompt: Prompt,
        max_new_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] | None = (),
        eos: int | Sequence[int] | None = None,
        *,
        prediction: Prediction | None = None,
        budget: int | None = None,
        corpus: str | None = None,
        priority: int = 0,
        stop_token_ids: int | Sequence[int] = (),
    ) -> GenerationRequest:
        """Encodes a request, which `open` takes and checks.

        Args:
            prompt: Text, chat messages or token ids ([T] or [1, T]).
            max_new_tokens: Most tokens of the answer.
            sampling: How tokens are drawn; None: greedily.
            stop: Stop strings; the answer ends before the first that occurs.
            eos: Id or ids of end tokens; None: the model's own.
            prediction: As in `generate`.
            budget: As in `generate`.
            corpus: As in `generate`.
            priority: Waiting requests with a lower number begin first.
            stop_token_ids: As in `generate`.

        Raises:
            ValueError: a text or a list of ids is wrong.
        """
        ends = None if eos is None else self._encoder.end_tokens(eos)
        if isinstance(prompt, str):
            self._encoder.check_length(prompt, min(self.engine.limits.values()))
        return GenerationRequest(
            self.encode(prompt),
            max_new_tokens,
            sampling or Sampling(),
            stop_strings(stop),
            ends,
            tuple(self.predicted(prediction)),
            budget,
            corpus,
            priority,
            self._encoder.end_tokens(stop_token_ids, "list of stop_token_ids"),
        )

    def open(self, prompt: Prompt | GenerationRequest, *how: Any, lane: Lane | None = None, **options: Any) -> Request:
        """Opens a request, which can be stepped through, cancelled and closed.

        Args:
            prompt: A request, or the first argument of `request`.
            *how, **options: The other arguments of `request`.
            lane: A free lane of the engine; None: the first, whose request ends.

        Returns:
            The request, before its prefill.

        Raises:
            ValueError: the prompt or a setting is wrong, or the request does not fit the model's positions.
            TypeError: there are other arguments beside a GenerationRequest.
        """
        if not isinstance(prompt, GenerationRequest):
            requested = self.request(prompt, *how, **options)
        elif how or options:
            raise TypeError("A GenerationRequest holds all arguments of a request. Change it by dataclasses.replace.")
        else:
            requested = replace(
                prompt,
                ids=self.encode(prompt.ids),
                stop=stop_strings(prompt.stop),
                predictions=tuple(self.predicted(prompt.predictions)),
            )
        sampling = requested.sampling
        if sampling.replay is not None:
            self._encoder.known(sampling.replay, "recorded continuation")
        stop_tokens = self._encoder.end_tokens(requested.stop_token_ids, "list of stop_token_ids")
        stop_tokens |= self._encoder.hidden_tokens(requested.stop)
        ends = self._encoder.end_tokens(self.eos if requested.eos is None else requested.eos)
        if sampling.constraint is not None and not ends:
            ends = frozenset(self.eos)  # a complete answer must be able to end
        text = None
        if self.tokenizer is not None:
            text = Detokenizer(self.tokenizer, requested.stop, requested.ids, requested.stop_until)
        shaping = None
        if sampling.shaped:
            shaping = Shaping(sampling, requested.ids, self.constraint(sampling, ends))
        corpus = self.default_corpus if requested.corpus is None else requested.corpus
        corpora = []
        if corpus is not None:
            corpora.append(self.corpus(corpus))
        requested = replace(requested, eos=ends, stop_token_ids=stop_tokens)
        return self.engine.open(requested, text, shaping, corpora, lane=lane)

    def constraint(self, sampling: Sampling, ends: Iterable[int]) -> Constraint | None:
        """Returns the constraint that the answer must follow, or None.

        Args:
            sampling: The sampling of the request.
            ends: Tokens that end the answer once it is complete.

        Raises:
            ValueError: the constraint cannot be followed, or the vocabulary lacks a biased token.
        """
        if sampling.logit_bias:
            self._encoder.known(list(sampling.logit_bias), "logit_bias")
        if sampling.constraint is None:
            return None
        return constraint(*sampling.constraint, self.tokenizer, self.target.vocab_size, sorted(ends))

    def corpus(self, name: str) -> Corpus:
        """Returns the corpus of this name.

        Raises ValueError if this tokenizer has none, or the method reads none.
        """
        if not any(memory.reads_corpora for memory in self.engine.proposer.memories):
            raise ValueError(
                f"Corpus {name!r} was asked for, and method {self.method} reads none. Use graft-x or graft-x-text."
            )
        with suppress(FileNotFoundError):  # the file was removed in the meantime
            changed = existing_corpus(name).stat().st_mtime_ns
            opened_at, corpus = self._corpora.get(name, (None, None))
            if corpus is None or opened_at != changed:
                corpus = open_corpus(name, vocabulary(self.tokenizer), self.target.vocab_size, self.target.name)
                self._corpora[name] = changed, corpus
            return corpus
        return self.corpus(name)

    def save_prefix(self, prompt: Prompt, path: str | Path, progress: bool | None = None) -> Saved:
        """Prefills a prompt and writes its rows to a file, for `load(prefix=path)`.

        Args:
            prompt: Text, chat messages or token ids.
            path: New file.
            progress: Show a progress bar; None: on a terminal.

        Returns:
            Number of tokens, bytes of the file, and duration in seconds.

        Raises:
            ValueError: the file exists, or the prompt is wrong.
        """
        path = new_file(path)
        ids = self.encode(prompt)
        if isinstance(prompt, str) and len(ids) > 1:
            ids = ids[:-1]  # the last token is left out, because text after it may merge into it
        wanted = needed(self.engine, self.tokenizer, self.method)
        since = time.perf_counter()
        with _bar(len(ids), progress) as bar:
            rows = read(self.engine, ids, bar.update)
        return Saved(len(ids), save(path, ids, rows, wanted), time.perf_counter() - since)

    def pin_prefix(self, path: str | Path) -> int:
        """Loads a file of `save_prefix`, never evicts it, and returns its length in tokens.

        Raises:
            ValueError: the file is damaged, or belongs to another model.
        """
        return pin(self.engine, Path(path), needed(self.engine, self.tokenizer, self.method))

    def predicted(self, prediction: Prediction | None) -> list[list[int]]:
        """Returns the token ids of each text that the answer may repeat."""
        return encode_prediction(self._encoder, prediction)

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = (),
        progress: bool | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Yields pieces of text as they become final.

        Together they are the text of `generate` with these arguments.

        Examples:
            >>> import longgraft
            >>> session = longgraft.load(tell=False)
            >>> pieces = list(session.stream("if __name__ ==", stop=":"))
            >>> "".join(pieces)
            ' "__main__"'
        """
        request = self._opened(prompt, max_new_tokens, stop, options)
        with request, _bar(request.prompt_tokens, progress) as bar:
            for step in request:
                _show_read(bar, step)
                if step.text:
                    yield step.text

    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = (),
        progress: bool | None = None,
        **options: Any,
    ) -> Generation:
        """Returns the whole answer.

        Its tokens are those that the method promises (`longgraft.methods.method.Method`): an exact method, as
        most are, gives the tokens of plain decoding, in float32 token for token; a method with the promise
        "distribution" gives these if greedy, and the target's distribution if sampled; a lossy method
        promises neither.

        Args:
            prompt: Text, chat messages or token ids ([T] or [1, T]).
            max_new_tokens: Most tokens of the answer.
            stop: Stop strings; the answer ends before the first that occurs.  One may be the text of a
                special token.
            progress: Show a progress bar over the prompt; None: on a terminal.
            **options: The fields of `Sampling` (temperature, top_p, top_k, min_p, seed, replay, json_schema,
                regex, grammar, logit_bias, penalties, logprobs and prompt_logprobs), completed as by
                `sampling`, and:
                prediction: A text that the answer may repeat, or several.  The model does not read it;
                memories that learn from tokens alone propose from it.
                budget: Most nodes per verification, root included, if less than the session's; 1: nothing is
                proposed.
                corpus: Name of a corpus (`longgraft corpus`) that the answer may repeat; None: the session's.
                eos: Ids of the end tokens; None: the model's own.
                stop_token_ids: Ids of tokens that end the answer, too; the text ends before them.

        Raises:
            ValueError: the prompt or a setting is wrong, or the request does not fit the model's positions.

        Examples:
            >>> import longgraft
            >>> session = longgraft.load(tell=False)
            >>> answer = session.generate("if __name__ ==", max_new_tokens=32, stop=":")
            >>> answer.text, answer.stats.prompt_tokens
            (' "__main__"', 5)

            The same prompt, sampled:

            >>> sampled = session.generate("if __name__ ==", 4, temperature=0.8, top_p=0.9, seed=1)
            >>> len(sampled.token_ids)
            4
        """
        return answer(self._opened(prompt, max_new_tokens, stop, options), progress)

    def _opened(
        self, prompt: Prompt, max_new_tokens: int, stop: str | Sequence[str] | None, options: dict[str, Any]
    ) -> Request:
        check_names(options, [*_NAMES, *(field.name for field in fields(Sampling))], "generate")
        drawing = {}
        for field in fields(Sampling):
            if field.name in options:
                drawing[field.name] = options.pop(field.name)
        return self.open(prompt, max_new_tokens, self.sampling(**drawing), stop, **options)


# Arguments of `Session.request` that `generate` and `stream` take.
_NAMES = tuple(signature(Session.request).parameters.keys() - {"self", "prompt", "sampling"})


def answer(
    request: Request, progress: bool | None = None, tell: Callable[[str], None] = lambda text: None
) -> Generation:
    """Steps a request to its end and returns the answer.

    Args:
        progress: Show the prefill's progress; None: on a terminal.
        tell: Called with each piece of text.
    """
    steps = list[Step]()
    with request, _bar(request.prompt_tokens, progress) as bar:
        for step in request:
            _show_read(bar, step)
            tell(step.text)
            steps.append(step)
    return generation(steps, request)


def generation(steps: Sequence[Step], request: Request) -> Generation:
    """Returns the answer that these steps of an ended request gave."""
    assert request.finish_reason is not None
    pieces = list[str]()
    tokens = list[int]()
    logprobs = list[TokenLogprob]()
    prompt_logprobs = list[TokenLogprob]()
    for step in steps:
        pieces.append(step.text)
        tokens += step.tokens
        logprobs += step.logprobs
        prompt_logprobs += step.prompt_logprobs
    return Generation(
        "".join(pieces), tokens, request.stats, request.finish_reason, tuple(logprobs), tuple(prompt_logprobs)
    )


def _show_read(bar: Any, step: Step) -> None:
    """Moves the bar by the prompt tokens that a step read.

    A full one goes, because the answer is printed next.
    """
    bar.update(step.read)
    if bar.n == bar.total:
        bar.close()


def _bar(tokens: int, progress: bool | None) -> Any:
    """Returns a progress bar over the tokens of a prompt; progress: None: shown on a terminal."""
    from tqdm import tqdm

    hidden = None if progress is None else not progress
    return tqdm(total=tokens, desc="prefill", unit="tok", unit_scale=True, disable=hidden, leave=False, delay=BAR_AFTER)
