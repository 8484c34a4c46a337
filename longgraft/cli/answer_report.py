"""The report on an answer, for people."""

from __future__ import annotations

import sys
from typing import Any

# Descriptions of the names in `Stats.kinds`, `Stats.accepted_by_origin` and `Stats.finish_reason`.
SPENT = {"plain": "without guesses", "memory": "with retrieved guesses", "draft": "with drafted guesses"}
ORIGINS = {
    "draft": "drafted",
    "retrieved": "retrieved",
    "both": "drafted and retrieved",
    "forced": "the only ones that the constraint allows",
}
ENDED = {
    "length": "stopped at --max-new-tokens",
    "eos": "ended by the model",
    "stop": "ended by a stop string",
    "cancelled": "cancelled",
}


def print_report(report: dict[str, Any]) -> None:
    """Prints what an answer cost, on stderr."""
    stats = report["stats"]
    by_origin = {name: count for name, count in stats["accepted_by_origin"].items() if count}
    origins = [f"{count} {ORIGINS[name]}" for name, count in by_origin.items()]
    origins.append(f"{stats['new_tokens'] - sum(by_origin.values())} by the model itself")
    spent = ", ".join(f"{count} {SPENT[kind]}" for kind, count in stats["kinds"].items())
    known = f", {stats['reused_tokens']:,} of them known," if stats["reused_tokens"] else ","
    read = f"\nprompt: {stats['prompt_tokens']:,} tokens{known} read in {stats['prefill_seconds']:.2f} s\n"
    ended = ENDED[report["finish_reason"]]
    if stats["steps"]:
        print(
            f"{read}answer: {stats['new_tokens']:,} tokens ({ended}) in "
            f"{stats['decode_seconds']:.2f} s: {stats['decode_tokens_per_second']:.1f} tokens/s\n"
            f"steps: {stats['steps']} ({spent}), {stats['tokens_per_step']:.2f} tokens per step\n"
            f"tokens: {', '.join(origins)}; {stats['mat']:.2f} guesses accepted per step (MAT)",
            file=sys.stderr,
        )
    else:
        print(f"{read}answer: its first token alone ({ended}), so it has no steps and no speed", file=sys.stderr)
    if "prediction" in report:
        repeated, rejected = report["prediction"].values()
        print(f"prediction: the answer repeats {repeated:,} of its {repeated + rejected:,} tokens", file=sys.stderr)
    if "compare" in report:
        _print_comparison(report)
    if "steps" in report:
        from longgraft.budget.step_explanations import explanation_table

        print(f"\n{explanation_table(report['steps'])}", file=sys.stderr)
    if report["loops"]:
        print("the answer repeats itself: in a loop every guess is right, so this speed is no measure", file=sys.stderr)


def _print_comparison(report: dict[str, Any]) -> None:
    """Prints how an answer compares with plain decoding, on stderr."""
    from longgraft.comparison.levels import may_differ

    comparison = report["compare"]
    answers = "identical answers"
    if not comparison["identical"]:
        answers = f"answers differ from token {comparison['first_divergence'] + 1:,} on"
    why = may_differ(report["promise"], report["settings"]["temperature"] > 0)
    if why:
        answers += f" ({report['promise']}: {why})"
    if comparison["speedup"] is None:
        print(f"plain decoding: no step follows the first token, so no speeds compare; {answers}", file=sys.stderr)
        return
    left_out = "reading the prompt"
    if comparison["plain_recording_seconds"]:
        left_out += " and recording CUDA graphs"
    print(
        f"plain decoding: {comparison['plain_tokens_per_second']:.1f} tokens/s; longgraft was "
        f"{comparison['speedup']:.2f} times as fast (one run each, without {left_out}); {answers}",
        file=sys.stderr,
    )
