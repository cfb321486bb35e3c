"""Write the client of eval/adapters/reward_client.py into all adapters: `make adapters`.

    python tools/adapters/write_client.py

An adapter is one file, which users copy alone into another framework. Everything below the imports
of reward_client.py is therefore copied into a marked block of each adapter.
"""

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "eval" / "adapters"
SOURCE = FOLDER / "reward_client.py"
BEGIN = "# --- The client of eval/serve.py. `make adapters` writes it from reward_client.py. ---\n"
END = "# --- End of the client ---\n"


def adapter_files() -> list[Path]:
    """Return the files of all adapters, in the order of their names."""
    return sorted(FOLDER.glob("*_reward.py"))


def import_nodes(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements at the top level of a module."""
    nodes = ast.parse(text).body
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def client_lines(source: str) -> str:
    """Return everything below the imports of reward_client.py, without empty lines around it."""
    last_import = import_nodes(source)[-1]
    lines = source.splitlines(keepends=True)
    return "".join(lines[last_import.end_lineno :]).strip("\n") + "\n"


def fault_of(adapter: str, source: str) -> str:
    """Return the reason why the client cannot be written into an adapter, or an empty text."""
    present_imports = {ast.unparse(node) for node in import_nodes(adapter)}
    for node in import_nodes(source):
        statement = ast.unparse(node)
        if statement not in present_imports:
            return f"lacks `{statement}`, which the client needs"
    for mark in (BEGIN, END):
        num_marks = adapter.count(mark)
        if num_marks != 1:
            return f"has the line `{mark.strip()}` {num_marks} times, and it is required once"
    if adapter.index(END) < adapter.index(BEGIN):
        return "has the end of the client above its beginning"
    return ""


def with_client(adapter: str, source: str) -> str:
    """Return the text of an adapter with the client of `source` between its two marks."""
    before = adapter.split(BEGIN)[0]
    after = adapter.split(END)[1]
    return f"{before}{BEGIN}\n{client_lines(source)}\n\n{END}{after}"


def main() -> None:
    """Write the client into every adapter, and print which files have changed."""
    source = SOURCE.read_text(encoding="utf-8")
    for path in adapter_files():
        adapter = path.read_text(encoding="utf-8")
        fault = fault_of(adapter, source)
        if fault:
            raise SystemExit(f"{path.name} {fault}.")
        new_text = with_client(adapter, source)
        path.write_text(new_text, encoding="utf-8")
        print(f"{path.name}: {'unchanged' if new_text == adapter else 'written'}")


if __name__ == "__main__":
    main()
