"""LongBench's scores of an answer: ROUGE-L for summaries and meetings, edit similarity for code.

ROUGE-L is rouge-score's, without stemming.  LongBench's own numbers come from the package `rouge`, which splits words
at spaces and keeps case and punctuation, so only compare methods here with one another.
"""

from __future__ import annotations

from collections.abc import Sequence

NEEDED = ("LongBench's scores need rouge-score and rapidfuzz, and {} is not installed.\n"
          "Run: pip install 'longgraft[eval]'")


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """Returns F1 of the longest common subsequence of words, 0..1: the best over the answers; 0 if there are none."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError(NEEDED.format("rouge-score")) from error
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return max((float(scorer.score(answer, text)["rougeL"].fmeasure) for answer in answers), default=0.0)


def edit_similarity(text: str, answers: Sequence[str]) -> float:
    """Returns the likeness of the first line of code to the true next line, 0..1: the best over the answers.

    As in LongBench's metrics.py, a line with a backtick, # or // anywhere is no code, and indentation counts.
    """
    try:
        from rapidfuzz import fuzz
    except ImportError as error:
        raise ImportError(NEEDED.format("rapidfuzz")) from error
    lines = text.lstrip("\n").split("\n")
    first = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return max((fuzz.ratio(first, answer) / 100 for answer in answers), default=0.0)


METRICS = {"qmsum": ("ROUGE-L", rouge_l), "gov_report": ("ROUGE-L", rouge_l), "multi_news": ("ROUGE-L", rouge_l),
           "lcc": ("edit similarity", edit_similarity), "repobench-p": ("edit similarity", edit_similarity)}


def score(suite: str, text: str, answers: Sequence[str]) -> tuple[str, float] | None:
    """Returns (metric, 0..1) for LongBench's suites; None for other suites and rows without answers."""
    if suite not in METRICS or not answers:
        return None
    metric, measure = METRICS[suite]
    return metric, measure(text, answers)
