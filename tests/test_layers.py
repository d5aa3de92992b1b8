"""Imports point down, and third-party libraries stay where they belong."""

import ast
from pathlib import Path

import unmask

ROOT = Path(unmask.__file__).parent
LAYERS = [
    {"errors"},
    {"core"},
    {"config", "events"},
    {"recipe", "limits", "lock", "heap"},
    {"options", "resolve", "text", "auto", "guide", "model"},
    {"row", "data"},
    {"decode", "verified"},
    {"modes", "prefix"},
    {"live"},
    {"engine", "rundir", "noising", "report", "guard", "journal"},
    {"curves", "processes"},
    {"validation", "rowsharing"},
    {"adapt"},
    {"api"},
    {"demo", "plan", "spread"},
    {"bench", "synthesize", "serve"},
    {"evaluate"},
    {"commands"},
    {"cli", "__init__", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "transformers": "model",
    "peft": "model",
    "gguf": "model",
    "safetensors": "model",
    "huggingface_hub": "model",
    "llama_cpp": "model",
    "matplotlib": "report",
    "datasets": ("data", "evaluate"),
    "ray": ("spread", "serve"),
    "rich": "commands",
    "lm_eval": "evaluate",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "pydantic": "serve",
    "prometheus_client": "serve",
    "reasoning_gym": "evaluate",
    "llguidance": "guide",
}
CORE_MAY_USE = {"torch", "math", "bisect", "dataclasses", "collections", "typing", "hashlib", "unmask"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return found


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        yield path, relative.parts[0].removesuffix(".py")


def test_every_module_has_a_layer():
    assert {name for _, name in modules()} == set(RANK)


def test_imports_point_down():
    for path, name in modules():
        for target in imports(path):
            parts = target.split(".")
            if parts[0] == "unmask" and len(parts) > 1 and parts[1] != name:
                assert RANK[parts[1]] <= RANK[name], f"{path.name} ({name}) imports {target}"


def test_no_cycle_between_modules():
    """Within a layer too: the graph of modules (packages taken whole) has no cycle."""
    graph: dict[str, set[str]] = {}
    for path, name in modules():
        targets = {t.split(".")[1] for t in imports(path) if t.startswith("unmask.")}
        graph.setdefault(name, set()).update(targets - {name})

    def reach(start: str, seen: set[str]) -> set[str]:
        for target in graph.get(start, set()) - seen:
            reach(target, seen | {target})
            seen.add(target)
        return seen

    for name in graph:
        assert name not in {end for target in graph[name] for end in reach(target, {target})}, name


def test_third_party_imports_stay_in_their_place():
    for path, name in modules():
        for target in imports(path):
            package = target.split(".")[0]
            places = ONLY_IN.get(package, name)
            assert name in ((places,) if isinstance(places, str) else places), f"{path} imports {package}"


def test_core_knows_torch_and_nothing_else():
    for path, name in modules():
        if name == "core":
            assert {target.split(".")[0] for target in imports(path)} <= CORE_MAY_USE, path


def test_files_and_functions_stay_small():
    for path, _ in modules():
        source = path.read_text()
        assert source.count("\n") <= 400, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno + 1 <= 60, f"{path}: {node.name}"
