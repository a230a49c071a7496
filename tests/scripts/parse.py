"""Parses scripts that are not run here: image descriptions and PowerShell. Usage: parse.py FILE..."""

import pathlib
import sys

import dockerfile
import tree_sitter
import tree_sitter_powershell

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Targets that the documentation names.
TARGETS = {"base", "full", "light", "server"}


def faults_of_image(path):
    """Syntax, stages that are named, and sources of copies that exist."""
    stages = set()
    for command in dockerfile.parse_file(str(path)):
        where = f"{path}:{command.start_line}"
        if command.cmd.lower() == "from":
            if len(command.value) == 3:
                stages.add(command.value[2])
        elif command.cmd.lower() == "copy":
            stage = [flag.removeprefix("--from=") for flag in command.flags if flag.startswith("--from=")]
            if stage and stage[0] not in stages:
                yield f"{where}: copies from {stage[0]}, which is no earlier stage"
            for source in [] if stage else command.value[:-1]:
                if not (ROOT / source).exists():
                    yield f"{where}: copies {source}, which is not there"
    for name in TARGETS - stages:
        yield f"{path}: there is no target {name}"


def faults_of_powershell(path):
    """Places that are no PowerShell."""
    language = tree_sitter.Language(tree_sitter_powershell.language())
    nodes = [tree_sitter.Parser(language).parse(path.read_bytes()).root_node]
    while nodes:
        node = nodes.pop()
        if node.is_error or node.is_missing:
            yield f"{path}:{node.start_point[0] + 1}: no PowerShell: {node.text.decode()[:60]!r}"
        nodes.extend(node.children)


def main():
    faults = []
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        find = faults_of_powershell if path.suffix == ".ps1" else faults_of_image
        try:
            faults.extend(find(path))
        except dockerfile.GoParseError as error:
            faults.append(f"{path}: {error}")
    print("\n".join(faults) or f"{len(sys.argv) - 1} scripts parsed")
    sys.exit(bool(faults))


main()
