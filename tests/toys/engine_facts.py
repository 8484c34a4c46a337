"""Facts of the engines that plug-ins use, and a command that reads them: tests/golden/plugins/facts.json.

    python tests/toys/engine_facts.py                       # reads the versions that options.TRIED names again
    python tests/toys/engine_facts.py sglang==0.5.24

pip fetches the packages without their dependencies.  Nothing of them is installed or run.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parents[1]
FACTS = TESTS / "golden" / "plugins" / "facts.json"
PLUGINS = TESTS.parent / "longgraft" / "plugins"
SPECULATIVE = "sglang/srt/speculative/"
# By our file: the class of each of its variables, as FILE:CLASS.  `self` has the class that ours derives from.
CLASSES = {
    "sglang": {
        "sglang.py": {"SpeculativeAlgorithm": SPECULATIVE + "spec_info.py:SpeculativeAlgorithm"},
        "sglang_algorithm.py": {
            "args": "sglang/srt/arg_groups/fields:",
            "self": SPECULATIVE + "spec_registry.py:CustomSpecAlgo",
            "SpeculativeAlgorithm": SPECULATIVE + "spec_info.py:SpeculativeAlgorithm",
        },
        "sglang_worker.py": {
            "self": SPECULATIVE + "ngram_worker.py:NGRAMWorker",
            "batch": "sglang/srt/managers/schedule_batch.py:ScheduleBatch",
            "batch.forward_mode": "sglang/srt/model_executor/forward_batch_info.py:ForwardMode",
            "batch.spec_info": SPECULATIVE + "ngram_info.py:NgramVerifyInput",
            "request": "sglang/srt/managers/schedule_batch.py:Req",
        },
    },
    "vllm": {
        "vllm.py": {
            "vllm_config": "vllm/config/vllm.py:VllmConfig",
            "vllm_config.speculative_config": "vllm/config/speculative.py:SpeculativeConfig",
            "vllm_config.model_config": "vllm/config/model.py:ModelConfig",
        }
    },
    "llama-cpp-python": {"llama_cpp.py": {"self": "llama_cpp/llama_speculative.py:LlamaDraftModel"}},
}
# Statements of the engines, by what they call or name: the file, and how the statement begins.
STATEMENTS = {
    "sglang": {
        "_prepare_draft_tokens": (SPECULATIVE + "ngram_worker.py", "self._prepare_draft_tokens("),
        "_update_ngram_corpus": (SPECULATIVE + "ngram_worker.py", "self._update_ngram_corpus("),
        "clear_cache_pool": ("sglang/srt/managers/scheduler.py", "self.draft_worker.clear_cache_pool("),
        "handle_server_args": ("sglang/srt/arg_groups/speculative_hook.py", "algo.handle_server_args("),
        "entry points": ("sglang/srt/plugins/__init__.py", "GENERAL_PLUGINS_GROUP = "),
    },
    "vllm": {
        "propose": ("vllm/v1/worker/gpu_model_runner.py", "cast(Any, self.drafter).propose("),
        "load_model": ("vllm/v1/worker/gpu_model_runner.py", "self.drafter.load_model("),
        "__init__": ("vllm/v1/spec_decode/custom_class_proposer.py", "user_class("),
    },
    "llama-cpp-python": {"__call__": ("llama_cpp/llama.py", "self.draft_model(")},
}
# SGLang's scheduler calls an algorithm as if it were the first class, and the second one lacks methods of it.
ENUM = SPECULATIVE + "spec_info.py:SpeculativeAlgorithm"
REGISTERED = SPECULATIVE + "spec_registry.py:CustomSpecAlgo"


def used(engine: str) -> dict[str, str]:
    """Returns "our file: variable.attribute" and FILE:CLASS.ATTRIBUTE of all that our files use of an engine."""
    found = {}
    for file, classes in CLASSES[engine].items():
        for chain in sorted(set(chains(ast.parse((PLUGINS / file).read_text())))):
            owner, _, name = chain.rpartition(".")
            if owner in classes:
                found[f"{file}: {chain}"] = f"{classes[owner]}.{name}"
    return found


def chains(tree: ast.AST) -> Iterator[str]:
    """Yields attributes as they are written, methods that a class defines, and SGLang's options by name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                yield f"self.{node.attr}"
            case ast.Attribute():
                yield ast.unparse(node)
            case ast.ClassDef(bases=[_, *_]):
                yield from (f"self.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef))
            case ast.Assign(targets=[ast.Name(id="UNUSED")], value=ast.Dict(keys=keys)):
                yield from (f"args.{ast.literal_eval(key)}" for key in keys if key)


def members(sources: Path, place: str) -> dict[str, str]:
    """Returns a class's methods with their parameters, and its attributes with their defaults.

    Args:
        sources: Folder of the sources.
        place: FILE:CLASS, or FOLDER: or FILE: for all classes there.
    """
    file, _, name = place.partition(":")
    found: dict[str, str] = {}
    for path in sorted((sources / file).glob("*.py")) or [sources / file]:
        for owner in ast.walk(ast.parse(path.read_text())):
            if isinstance(owner, ast.ClassDef) and name in ("", owner.name):
                for node in ast.walk(owner):
                    found |= member(node)
    return found


def member(node: ast.AST) -> dict[str, str]:
    match node:
        case ast.FunctionDef(name=name, args=args):
            for one in ast.walk(args):
                if isinstance(one, ast.arg):
                    one.annotation = None
            return {name: ast.unparse(args)}
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return {name: "" if value is None else ast.unparse(value)}
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return {name: ""}
        case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return {name: ""}
    return {}


def read(engine: str, sources: Path) -> dict[str, dict[str, str]]:
    """Returns what an engine's sources have of what is used; what is not there is left out."""
    uses = {}
    for use, place in used(engine).items():
        owner, _, name = place.rpartition(".")
        known = members(sources, owner)
        if name in known:
            uses[use] = known[name]
    statements = {}
    for name, (file, start) in STATEMENTS[engine].items():
        for node in ast.walk(ast.parse((sources / file).read_text())):
            if isinstance(node, ast.Call | ast.Assign) and ast.unparse(node).startswith(start):
                statements[name] = ast.unparse(node)
    facts = {"uses": uses, "statements": statements}
    if engine == "sglang":
        has = members(sources, REGISTERED)
        facts["lacks"] = {name: its for name, its in members(sources, ENUM).items() if name not in has}
    return facts


def fetch(requirement: str) -> dict[str, dict[str, str]]:
    """Returns the facts of a package that pip fetches."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, requirement]
        subprocess.run(command, check=True)
        (package,) = Path(folder).iterdir()
        shutil.unpack_archive(package, folder, "zip" if package.suffix == ".whl" else None)
        engine = requirement.partition("==")[0]
        (file, _) = next(iter(STATEMENTS[engine].values()))
        (found,) = (path for path in Path(folder).rglob(file) if path.is_file())
        return read(engine, Path(str(found).removesuffix(file)))


def main() -> None:
    from longgraft.plugins.options import TRIED

    wanted = sys.argv[1:] or [f"{engine}=={version}" for engine, versions in TRIED.items() for version in versions]
    facts = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    for requirement in wanted:
        facts[requirement] = fetch(requirement)
    FACTS.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
