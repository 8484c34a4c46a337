"""The catalogue of suites: official prompt, place, and how a prompt may be cut."""

from __future__ import annotations

from dataclasses import dataclass

SPEC_BENCH = "https://github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl"
# Kinds of Spec-Bench's table, each with the categories of its rows (evaluation/speed.py there).
SPEC_KINDS = {kind: (kind,) for kind in ("translation", "summarization", "qa", "math_reasoning", "rag")} | {
    "mt_bench": ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")}
SPEED_SIZES = ("1k", "2k", "8k", "16k", "32k")


@dataclass(frozen=True)
class Suite:
    """One suite.

    clause:   describes it, for people
    template: the prompt around {context}, with {input} if the suite has one; "" for question sets
    unit, chat, max_new_tokens: as in Example
    hub:      repository, configuration ("" for none) and split for `datasets.load_dataset`; empty: not on the hub
    source:   where to download it if it is not on the hub
    column:   the hub rows' column, if it has none of the usual names
    lead:     text before the column's text
    files:    names in a local folder, besides <name>.jsonl and eagle_<name>.jsonl
    kinds:    only rows of these categories; empty: all
    """

    clause: str
    template: str = ""
    unit: str = "line"
    chat: bool = True
    max_new_tokens: int | None = None
    hub: tuple[str, ...] = ()
    source: str = ""
    column: str = ""
    lead: str = ""
    files: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


# Prompts and lengths are from THUDM/LongBench, LongBench/config/dataset2prompt.json and dataset2maxlen.json at
# 2e00731f. Code has no chat template, as in LongBench/pred.py.
QMSUM = ("You are given a meeting transcript and a query containing a question or instruction. Answer the query in one "
         "or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript "
         "in one or more sentences.\n\nQuery: {input}\nAnswer:")
GOV_REPORT = ("You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n"
              "{context}\n\nNow, write a one-page summary of the report.\n\nSummary:")
MULTI_NEWS = ("You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\n"
              "Now, write a one-page summary of all the news.\n\nSummary:")
LCC = "Please complete the code given below. \n{context}Next line of code:\n"
REPOBENCH = "Please complete the code given below. \n{context}{input}Next line of code:\n"


def _longbench(name: str, clause: str, template: str, unit: str, most: int) -> Suite:
    hub = ("THUDM/LongBench", name, "test")
    return Suite(clause, template, unit, chat=unit != "line", max_new_tokens=most, hub=hub)


def _questions(clause: str, hub: tuple[str, ...] = (), **more: str | tuple[str, ...]) -> Suite:
    # EAGLE and Spec-Bench both generate up to 1,024 tokens.
    return Suite(clause, max_new_tokens=1024, hub=hub, **more)      # type: ignore[arg-type]


SUITES: dict[str, Suite] = {
    "qmsum": _longbench("qmsum", "LongBench: a question about a meeting", QMSUM, "turn", 512),
    "gov_report": _longbench("gov_report", "LongBench: summarise a government report", GOV_REPORT, "sentence", 512),
    "multi_news": _longbench("multi_news", "LongBench: summarise several news articles", MULTI_NEWS, "sentence", 512),
    "lcc": _longbench("lcc", "LongBench: the next line of a source file", LCC, "line", 64),
    "repobench-p": _longbench("repobench-p", "LongBench: the next line, other files of the repository given",
                              REPOBENCH, "line", 64),
    "pg19": Suite("PG-19: a book, to be continued", "{context}", "sentence", chat=False,
                  hub=("emozilla/pg19", "", "test")),
    "spec_bench": _questions("Spec-Bench: short questions of six kinds, some with a second turn", source=SPEC_BENCH),
    "humaneval": _questions("HumanEval: complete a function", ("openai/openai_humaneval", "", "test"),
                            column="prompt", lead="Complete the code I provided.\n"),
    "gsm8k": _questions("GSM8K: grade-school mathematics", ("openai/gsm8k", "main", "test")),
    "alpaca": _questions("Alpaca: instructions", ("tatsu-lab/alpaca", "", "train")),
    "cnn_dm": Suite("CNN/DailyMail: summarise an article (EAGLE's `sum`)", max_new_tokens=1024,
                    hub=("abisee/cnn_dailymail", "3.0.0", "test"), column="article", lead="Summarize: ",
                    files=("eagle_sum.jsonl", "sum.jsonl")),
    "qa": _questions("Natural Questions, without a text", ("google-research-datasets/nq_open", "", "validation")),
    "mt_bench": _questions("MT-Bench: open questions, two turns", ("HuggingFaceH4/mt_bench_prompts", "", "train")),
    "speed_bench": _questions("SPEED-Bench: eleven kinds of questions", ("nvidia/SPEED-Bench", "qualitative", "test")),
} | {f"speed_bench_throughput_{size}": _questions(f"SPEED-Bench: prompts of about {size.upper()} tokens",
                                                  ("nvidia/SPEED-Bench", f"throughput_{size}", "test"))
     for size in SPEED_SIZES} | {
    f"spec_bench_{kind}": _questions(f"Spec-Bench: its questions of the kind {kind} alone", source=SPEC_BENCH,
                                     files=("spec_bench.jsonl",), kinds=kinds) for kind, kinds in SPEC_KINDS.items()}
