"""The fields of llama.cpp's own requests, besides those of all requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from longgraft.serve.formats.request_fields import AnswerRequest, TokenIds
from longgraft.serve.formats.unsupported_fields import Unsupported

PIECES = 256  # most pieces of other text; llama.vim sends 16


class LlamaCppRequest(AnswerRequest):
    """The limits of an answer, and the fields of its response."""

    n_indent: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="Least indentation of each new line"
    )
    t_max_predict_ms: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Time from the first token after which the answer ends with its line; 0: no limit",
    )
    response_fields: Annotated[list[str], Field(max_length=PIECES, fail_fast=True)] | None = Field(
        None, description="Paths such as timings/prompt_n; none: all"
    )
    return_tokens: bool | None = False

    def check_supported(self) -> None:
        """Raises Unsupported for several answers, which only OpenAI's API has here."""
        super().check_supported()
        if (self.n or 1) > 1:
            raise Unsupported(
                "n", f"n is {self.n}, and one answer is given here. Leave it out, or ask /v1/completions."
            )

    @property
    def seconds(self) -> float | None:
        """Time after which the answer ends with its line; None: no limit."""
        limit = self.t_max_predict_ms or 0.0
        if limit <= 0:
            return None
        return limit / 1000

    @property
    def line_end(self) -> str:
        """The line end that the answer's lines get; "": they are left as they are."""
        return ""


class LlamaCppCompletionRequest(LlamaCppRequest):
    """A request to /completion."""

    prompt: str | TokenIds = Field(description="Text or token ids")
