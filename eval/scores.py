"""LongBench's scores of an answer: ROUGE-L for summaries and meetings, edit similarity for code, accuracy for choices.

ROUGE-L is rouge-score's, without stemming.  LongBench's own numbers come from the package `rouge`, which splits words
at spaces and keeps case and punctuation, so only compare methods here with one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NEEDED = (
    "LongBench's scores need rouge-score and rapidfuzz, and {} is not installed.\nRun: pip install 'longgraft[eval]'"
)


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


# Where LongBench v2 looks for the chosen letter (pred.py, extract_answer), in this order.
CHOICE_PATTERNS = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))


def choice_of(text: str) -> str | None:
    """Returns the letter that an answer to a question of LongBench v2 chooses; None if it does not say it as asked."""
    plain = text.replace("*", "")  # an answer in bold
    for pattern in CHOICE_PATTERNS:
        choice = pattern.search(plain)
        if choice:
            return choice[1]
    return None


def choice_accuracy(text: str, answers: Sequence[str]) -> float:
    """Returns 1 if the chosen letter is right, else 0."""
    return float(choice_of(text) in answers)


ROUGE_L = ("ROUGE-L", rouge_l)
EDIT_SIMILARITY = ("edit similarity", edit_similarity)
ACCURACY = ("accuracy", choice_accuracy)
METRICS = {
    "qmsum": ROUGE_L,
    "gov_report": ROUGE_L,
    "multi_news": ROUGE_L,
    "lcc": EDIT_SIMILARITY,
    "repobench-p": EDIT_SIMILARITY,
    "longbench_v2": ACCURACY,
    "longbench_v2_short": ACCURACY,
    "longbench_v2_medium": ACCURACY,
    "longbench_v2_long": ACCURACY,
}


def score(suite: str, text: str, answers: Sequence[str]) -> tuple[str, float] | None:
    """Returns (metric, 0..1) for LongBench's suites; None for other suites and rows without answers."""
    if suite not in METRICS or not answers:
        return None
    metric, measure = METRICS[suite]
    return metric, measure(text, answers)
