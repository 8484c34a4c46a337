"""A request for an answer, as a value.  `Session.open` checks it, and all that is below takes it as it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from longgraft.acceptance.sampling import Sampling


@dataclass(frozen=True)
class GenerationRequest:
    """All that an answer depends on, besides the model and the method.

    Attributes:
        ids: Token ids of the prompt.
        max_new_tokens: Most tokens of the answer.
        sampling: How tokens are drawn.
        stop: Stop strings; the answer ends before the first that occurs.
        stop_until: Regular expression; from its first match on, stop strings do not count.
        eos: End tokens; None: the model's own.
        predictions: Token ids of texts that the answer may repeat.  The model does not read them.
        budget: Most nodes per verification, root included, if less than the engine's.
        corpus: Name of a corpus that the answer may repeat; None: the session's.
        priority: Waiting requests with a lower number begin first.
        stop_token_ids: Tokens that end the answer as a stop string does, beside the end tokens.
        client: Whose earlier answers this one may repeat and joins, if the session remembers answers; None:
            nobody's.

    Examples:
        >>> import longgraft
        >>> session = longgraft.load(tell=False)
        >>> request = GenerationRequest(session.encode("if __name__ =="), max_new_tokens=32, stop=(":",))
        >>> "".join(step.text for step in session.open(request))
        ' "__main__"'
    """

    ids: Sequence[int]
    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos: Collection[int] | None = None
    predictions: tuple[Sequence[int], ...] = ()
    budget: int | None = None
    corpus: str | None = None
    priority: int = 0
    stop_token_ids: Collection[int] = ()
    stop_until: str | None = None
    client: str | None = ""
