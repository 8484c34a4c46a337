"""Scores of lm-evaluation-harness through the server, beside those of transformers on the same weights in float32.

    pip install "lm-eval[api]"
    python -m benchmarks.harness --model MODEL_FOLDER

The tasks are made of this checkout's files: `next_line` chooses the line that follows among four (log-likelihoods), and
`write_line` writes it after the passage was shown once (a greedy answer, also as a chat).
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import longgraft
from longgraft.models.catalogue import embedded
from longgraft.serve.app import make_app
from longgraft.serve.http_server import Server, bind, url
from longgraft.serve.options import Serving

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
ROOT = Path(__file__).parents[1]
LINES, CHOICES = 6, 4  # lines before the one in question; lines to choose from
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"  # for a folder whose tokenizer has none
NEXT, WRITE = "next_line", "write_line"
CHOOSE = """task: next_line
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: context
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
CONTINUE = """task: write_line
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{context}}{{choices[answer]}}\n\n{{context}}"
doc_to_target: "{{choices[answer]}}"
target_delimiter: ""
generation_kwargs: {until: ["\\n"], max_gen_toks: 32, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]
"""


def questions(count: int) -> list[dict[str, Any]]:
    """Returns passages of this checkout's guides and sources, each with lines of which one follows it."""
    drawn, found = random.Random(5), list[dict[str, Any]]()
    files = [
        path.read_text(encoding="utf-8").splitlines()
        for folder in ("docs", "longgraft/engine", "eval/prompts")
        for path in sorted((ROOT / folder).glob("*.*"))
        if path.suffix in (".md", ".py")
    ]
    every = [line for lines in files for line in lines if len(line) > 20]
    while len(found) < count:
        lines = drawn.choice(files)
        at = drawn.randrange(LINES, max(LINES + 1, len(lines)))
        if at >= len(lines) or len(lines[at]) <= 20:
            continue
        choices = [*drawn.sample([line for line in every if line != lines[at]], CHOICES - 1), lines[at]]
        drawn.shuffle(choices)
        found.append(
            {
                "context": "\n".join(lines[at - LINES : at]) + "\n",
                "choices": choices,
                "answer": choices.index(lines[at]),
            }
        )
    return found


@contextmanager
def served(folder: Path, method: str) -> Iterator[str]:
    """Serves a model in float32 and yields the server's address."""
    # transformers takes special tokens in a question for tokens, and the guides name some.
    options = Serving(port=0, model_name="model", special_tokens_in_content="allow")
    listens, ready = bind(options), threading.Event()
    server = Server(
        make_app(longgraft.load(str(folder), method=method, dtype="float32", tell=False), options), ready.set
    )
    thread = threading.Thread(target=server.run, args=([listens],))
    thread.start()
    try:
        ready.wait(60)
        yield url(listens, options)
    finally:
        server.should_exit = True
        thread.join(60)


def evaluated(
    model: str, args: str, tasks: list[str], folder: Path, chat: bool = False, batch: int = 1
) -> dict[str, Any]:
    """Returns the harness' results: scores, and what was answered to each question."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    return simple_evaluate(
        model=model,
        model_args=args,
        tasks=tasks,
        batch_size=batch,
        log_samples=True,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=chat,
        bootstrap_iters=0,
    )


def answers(found: dict[str, Any], task: str) -> list[Any]:
    """Returns the answers of a task, by question."""
    rows = sorted(found["samples"][task], key=lambda row: row["doc_id"])
    return [
        [answer for one in row["filtered_resps"] for answer in ([one] if isinstance(one, str) else one)] for row in rows
    ]


def apart(ours: list[Any], theirs: list[Any]) -> tuple[int, float]:
    """Returns how many answers differ (text, or is greedy), and the largest difference of log-likelihoods."""
    pairs = [pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one, other, strict=True)]
    numbers = [abs(float(a) - float(b)) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
    return sum(a != b for a, b in pairs if not isinstance(a, float)), max(numbers, default=0.0)


@app.command()
def main(
    model: Annotated[Path | None, typer.Option(help="Folder of a model; none: the embedded one.")] = None,
    method: str = "graft-x-text",
    count: int = 40,
    batch: int = 8,
) -> None:
    """Print one row per task and way to ask; the exit status is 1 if a score differs from transformers'."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as place:
        folder, weights, data = Path(place), Path(place) / "model", Path(place) / "questions.jsonl"
        source = str(model or embedded("target"))
        tokenizer = AutoTokenizer.from_pretrained(source)
        tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
        tokenizer.save_pretrained(weights)
        AutoModelForCausalLM.from_pretrained(source, dtype="float32").save_pretrained(weights)
        data.write_text("".join(json.dumps(row) + "\n" for row in questions(count)), encoding="utf-8")
        for name, text in ((NEXT, CHOOSE), (WRITE, CONTINUE)):
            (folder / f"{name}.yaml").write_text(text.replace("DATA", str(data)), encoding="utf-8")
        theirs = f"pretrained={weights},dtype=float32,device=cpu"
        plain = evaluated("hf", theirs, [NEXT, WRITE], folder)
        chatted = evaluated("hf", theirs, [WRITE], folder, chat=True)
        with served(weights, method) as at:
            ours = f"model=model,tokenizer={weights},tokenizer_backend=huggingface,num_concurrent=2,base_url={at}/v1/"
            rows = [
                (
                    "completions, ids",
                    plain,
                    evaluated("local-completions", ours + "completions", [NEXT, WRITE], folder, batch=batch),
                ),
                (
                    "completions, text",
                    plain,
                    evaluated("local-completions", ours + "completions,tokenized_requests=False", [WRITE], folder),
                ),
                (
                    "chats",
                    chatted,
                    evaluated("local-chat-completions", ours + "chat/completions", [WRITE], folder, chat=True),
                ),
            ]
    differ = False
    print(
        f"{'task':12} {'asked by':20} {'score':14} {'transformers':>12} {'served':>10} {'answers that differ':>20} "
        f"{'largest difference':>20}"
    )
    for way, reference, found in rows:
        for task, scores in found["results"].items():
            others, most = apart(answers(found, task), answers(reference, task))
            for name, score in scores.items():
                if isinstance(score, float) and "stderr" not in name:
                    differ |= score != reference["results"][task][name]
                    print(
                        f"{task:12} {way:20} {name.partition(',')[0]:14} {reference['results'][task][name]:12.4f} "
                        f"{score:10.4f} {others:20} {most:20.2g}"
                    )
    sys.exit(int(differ))


if __name__ == "__main__":
    app()
