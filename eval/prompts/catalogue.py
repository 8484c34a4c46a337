"""The catalogue of suites: official prompt, place, and how a prompt may be cut."""

from __future__ import annotations

from dataclasses import dataclass

# Longest answer to a question: EAGLE and Spec-Bench both generate up to 1,024 tokens.
QUESTION_TOKENS = 1024

SPEC_BENCH = "https://github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl"
MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
# Kinds of Spec-Bench's table, each with the categories of its rows (evaluation/speed.py there).
SPEC_KINDS = {
    "translation": ("translation",),
    "summarization": ("summarization",),
    "qa": ("qa",),
    "math_reasoning": ("math_reasoning",),
    "rag": ("rag",),
    "mt_bench": MT_BENCH_CATEGORIES,
}

# SPEED-Bench, arXiv 2604.09557: categories of its qualitative split, and entropy tiers and thousands of prompt tokens
# of its throughput splits. The tokens are counted with the tokenizer o200k_base.
SPEED_CATEGORIES = "coding humanities math multilingual qa rag reasoning roleplay stem summarization writing"
SPEED_TIERS = ("low_entropy", "mixed", "high_entropy")
SPEED_THOUSANDS = (1, 2, 8, 16, 32)

# Values of LongBench v2's column `length`: up to 32,000 words, up to 128,000, more.
LONGBENCH_V2_LENGTHS = ("short", "medium", "long")


@dataclass(frozen=True)
class Suite:
    """One suite: its official prompt, where its rows are, and how its prompts may be cut.

    Attributes:
        template: The prompt around {context}, with the places of other columns ({input}, {question}, {choice_A} to
            {choice_D}); "" for question sets.
        unit, chat, max_new_tokens, fixed_length: As in Example.
        strip: True if texts go into the template without the spaces around them.
        hub: Repository, configuration ("" for none) and split for `datasets.load_dataset`; empty if the suite is not
            on the hub.
        source: Where to download the suite if it is not on the hub.
        column: The column with the text, if rows have none of the usual names.
        lead: Text before that of `column`.
        files: Names or patterns in a local folder, besides <name>.jsonl, eagle_<name>.jsonl and <name>.parquet.
        edit: Columns of the file before an edit, of the instruction, and of the file after it ("" if rows have none);
            empty for suites of other kinds, and if rows have the usual names.
        kinds: Values of `kind_column`; only rows with one of them belong to the suite. Empty: all rows.
        kind_column: The column that `kinds` are values of.
    """

    clause: str
    template: str = ""
    unit: str = "line"
    chat: bool = True
    max_new_tokens: int | None = None
    strip: bool = False
    hub: tuple[str, ...] = ()
    source: str = ""
    column: str = ""
    lead: str = ""
    files: tuple[str, ...] = ()
    edit: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    kind_column: str = "category"
    fixed_length: int | None = None


# Prompts and lengths are from THUDM/LongBench, LongBench/config/dataset2prompt.json and dataset2maxlen.json at
# 2e00731f. Code has no chat template, as in LongBench/pred.py.
QMSUM = (
    "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one "
    "or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript "
    "in one or more sentences.\n\nQuery: {input}\nAnswer:"
)
GOV_REPORT = (
    "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n"
    "{context}\n\nNow, write a one-page summary of the report.\n\nSummary:"
)
MULTI_NEWS = (
    "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\n"
    "Now, write a one-page summary of all the news.\n\nSummary:"
)
LCC = "Please complete the code given below. \n{context}Next line of code:\n"
REPOBENCH = "Please complete the code given below. \n{context}{input}Next line of code:\n"
# LongBench v2's prompt without examples or reasoning, prompts/0shot.txt; pred.py strips the texts and generates 128
# tokens.
LONGBENCH_V2 = (
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\n"
    "What is the correct answer to this question: {question}\nChoices:\n(A) {choice_A}\n(B) {choice_B}\n"
    "(C) {choice_C}\n(D) {choice_D}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)


def _longbench(name: str, clause: str, template: str, unit: str, max_new_tokens: int) -> Suite:
    hub = ("THUDM/LongBench", name, "test")
    return Suite(clause, template, unit, chat=unit != "line", max_new_tokens=max_new_tokens, hub=hub)


def _longbench_v2(clause: str, *lengths: str) -> Suite:
    # The repository on the hub holds one file, data.json. Contexts are of all kinds, so they are cut at lines.
    return Suite(
        clause,
        LONGBENCH_V2,
        max_new_tokens=128,
        strip=True,
        hub=("THUDM/LongBench-v2", "", "train"),
        files=("longbench_v2.jsonl", "longbench_v2.parquet", "data.json"),
        kinds=lengths,
        kind_column="length",
    )


def _questions(
    clause: str,
    *hub: str,
    source: str = "",
    column: str = "",
    lead: str = "",
    files: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
) -> Suite:
    return Suite(
        clause,
        max_new_tokens=QUESTION_TOKENS,
        hub=hub,
        source=source,
        column=column,
        lead=lead,
        files=files,
        kinds=kinds,
    )


def _blazedit(thousand: int) -> Suite:
    """Returns a suite of BlazEdit (github.com/ise-uiuc/blazedit), whose rows have no file after the edit.

    4,000 tokens are vLLM's limit of an answer, in `vllm bench`.
    """
    return Suite(
        f"BlazEdit: edit a Python file of about {thousand},000 characters",
        max_new_tokens=4000,
        hub=(f"vdaita/edit_{thousand}k_char", "", "train"),
        edit=("code", "change_request", ""),
    )


def _speed_bench(
    clause: str, split: str, name: str, kinds: tuple[str, ...] = (), fixed_length: int | None = None
) -> Suite:
    """Returns a suite of SPEED-Bench.

    Its files are those of the suite `name`, then those of NeMo Skills' prepare.py, of a copy of the hub's repository,
    and of Model-Optimizer's prepare_data.py.
    """
    files = (f"{name}.jsonl", f"{split}.jsonl", f"{split}/test*.parquet", f"speed/{split}/test*.parquet")
    return Suite(
        clause,
        max_new_tokens=QUESTION_TOKENS,
        hub=("nvidia/SPEED-Bench", split, "test"),
        files=files,
        kinds=kinds,
        fixed_length=fixed_length,
    )


def _speed_bench_suites() -> dict[str, Suite]:
    """Returns SPEED-Bench's suites: its splits, each category, and each entropy tier at each length."""
    suites = {"speed_bench": _speed_bench("SPEED-Bench: eleven kinds of questions", "qualitative", "speed_bench")}
    for category in SPEED_CATEGORIES.split():
        clause = f"SPEED-Bench: its questions of the category {category} alone"
        suites[f"speed_bench_{category}"] = _speed_bench(clause, "qualitative", "speed_bench", (category,))
    for thousand in SPEED_THOUSANDS:
        split = f"throughput_{thousand}k"
        name = f"speed_bench_{split}"
        length = 1024 * thousand
        clause = f"SPEED-Bench: prompts of about {thousand},000 tokens, for --buckets {thousand}k"
        suites[name] = _speed_bench(clause, split, name, fixed_length=length)
        for tier in SPEED_TIERS:
            suites[f"{name}_{tier}"] = _speed_bench(f"{clause}; {tier} alone", split, name, (tier,), length)
    return suites


SUITES: dict[str, Suite] = {
    "qmsum": _longbench("qmsum", "LongBench: a question about a meeting", QMSUM, "turn", 512),
    "gov_report": _longbench("gov_report", "LongBench: summarise a government report", GOV_REPORT, "sentence", 512),
    "multi_news": _longbench("multi_news", "LongBench: summarise several news articles", MULTI_NEWS, "sentence", 512),
    "lcc": _longbench("lcc", "LongBench: the next line of a source file", LCC, "line", 64),
    "repobench-p": _longbench(
        "repobench-p", "LongBench: the next line, other files of the repository given", REPOBENCH, "line", 64
    ),
    "longbench_v2": _longbench_v2("LongBench v2: a question with four choices about a long text"),
    "pg19": Suite(
        "PG-19: a book, to be continued", "{context}", "sentence", chat=False, hub=("emozilla/pg19", "", "test")
    ),
    "spec_bench": _questions("Spec-Bench: short questions of six kinds, some with a second turn", source=SPEC_BENCH),
    "humaneval": _questions(
        "HumanEval: complete a function",
        "openai/openai_humaneval",
        "",
        "test",
        column="prompt",
        lead="Complete the code I provided.\n",
    ),
    "gsm8k": _questions("GSM8K: grade-school mathematics", "openai/gsm8k", "main", "test"),
    "alpaca": _questions("Alpaca: instructions", "tatsu-lab/alpaca", "", "train"),
    "cnn_dm": _questions(
        "CNN/DailyMail: summarise an article (EAGLE's `sum`)",
        "abisee/cnn_dailymail",
        "3.0.0",
        "test",
        column="article",
        lead="Summarize: ",
        files=("eagle_sum.jsonl", "sum.jsonl"),
    ),
    "qa": _questions("Natural Questions, without a text", "google-research-datasets/nq_open", "", "validation"),
    "mt_bench": _questions("MT-Bench: open questions, two turns", "HuggingFaceH4/mt_bench_prompts", "", "train"),
    "can_it_edit": Suite("CanItEdit: edit a Python file as described", hub=("nuprl/CanItEdit", "", "test")),
    "instruct_coder": Suite(
        "InstructCoder: edit a piece of code",
        hub=("likaixin/InstructCoder", "", "train"),
        edit=("input", "instruction", "output"),
    ),
    "blazedit_5k": _blazedit(5),
    "blazedit_10k": _blazedit(10),
    **_speed_bench_suites(),
    **{
        f"longbench_v2_{length}": _longbench_v2(f"LongBench v2: its texts of the length {length} alone", length)
        for length in LONGBENCH_V2_LENGTHS
    },
    **{
        f"spec_bench_{kind}": _questions(
            f"Spec-Bench: its questions of the kind {kind} alone",
            source=SPEC_BENCH,
            files=("spec_bench.jsonl",),
            kinds=categories,
        )
        for kind, categories in SPEC_KINDS.items()
    },
}

# For messages: the suites that are not a part of another.
WHOLE_SUITES = ", ".join(name for name, suite in SUITES.items() if not suite.kinds)
