"""Makes requests about excerpts of documents: summarise, quote, rewrite, extract, explain, edit and complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longgraft.yarn_drafters.training.documents import Document

# Characters of an excerpt; the longest by default: short ones are fast to sample
SHORTEST = 400
LONGEST = 6000
PROSE_TASKS = (
    "Summarize the following text.",
    "Write a one-page summary of the text below.",
    "Summarize this in three sentences.",
    "What are the main points of this text? Answer with a list.",
    "Quote the three most important sentences of this text, word for word.",
    "Find the passage that says most about its main topic, and quote it exactly.",
    "Rewrite the following text in plain, simple English.",
    "Rewrite this text as a letter to a friend.",
    "Correct the grammar and spelling of this text, and change nothing else.",
    "Extract all names of people, places and organizations from this text, as a list.",
    "List every number and date in this text, each with what it refers to.",
    "Write five questions that this text answers, with their answers.",
    "Continue this text in the same style.",
    "Who says or does what in this text? Answer in order.",
)
CODE_TASKS = (
    "Explain what this code does.",
    "Explain this code step by step to a beginner.",
    "Summarize this file in one paragraph.",
    "List all functions and classes of this code, with one sentence for each.",
    "Add a comment to every function of this code. Show the whole code.",
    "Rename the variables of this code so that they are easier to understand. Show the whole code.",
    "Add error handling to this code, and show the changed code.",
    "Write unit tests for this code.",
    "Find a bug or a weakness in this code and show the corrected function.",
    "Repeat the first function of this code exactly, then explain it.",
    "Rewrite this code in Python.",
    "Write documentation for this code, with an example of its use.",
    "Complete this code.",
    "Continue this file where it stops.",
    "Change the first function of this code to be more readable, and print the whole file.",
)


def excerpt_of(document: Document, rng: np.random.Generator, longest: int = LONGEST) -> str:
    """Draws an excerpt of at most `longest` characters that begins and ends at line ends."""
    length = int(np.exp(rng.uniform(np.log(SHORTEST), np.log(longest))))
    start = int(rng.integers(max(1, len(document.text) - length)))
    start = document.text.rfind("\n", 0, start) + 1
    excerpt = document.text[start : start + length]
    if start + length < len(document.text) and "\n" in excerpt[SHORTEST // 2 :]:
        excerpt = excerpt[: excerpt.rindex("\n")]
    return excerpt


def document_request(documents: Sequence[Document], rng: np.random.Generator, longest: int = LONGEST) -> str:
    """Draws a request about an excerpt, of at most `longest` characters, of one of the documents."""
    document = documents[int(rng.integers(len(documents)))]
    excerpt = excerpt_of(document, rng, longest)
    tasks: Sequence[str] = PROSE_TASKS
    if document.type.startswith("code"):
        tasks = CODE_TASKS
    task = tasks[int(rng.integers(len(tasks)))]
    parts = (task, excerpt) if rng.random() < 0.5 else (excerpt, task)
    return "\n\n".join(part.strip("\n") for part in parts)
