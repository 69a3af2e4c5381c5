"""Shell blocks of the documentation, looked at without being run: does every command, option, target and file exist?"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import typer
import yaml

from tailkeeper.cli import app
from tests.docs_pages import ROOT

PROGRAMS = frozenset(
    {
        "cat",
        "cd",
        "chmod",
        "cp",
        "curl",
        "docker",
        "echo",
        "envoy",
        "export",
        "git",
        "haproxy",
        "helm",
        "journalctl",
        "jq",
        "kill",
        "kubectl",
        "make",
        "mkdir",
        "mv",
        "openssl",
        "pip",
        "python",
        "python3",
        "rm",
        "sglang-router",
        "sleep",
        "socat",
        "ssh",
        "sudo",
        "systemctl",
        "tailkeeper",
        "test",
        "traefik",
        "usermod",
        "vllm-router",
    }
)
"""What a reader may be told to run. A new one is added here on purpose; those with a check of their own are in `CHECKS`."""
_OPERATORS = frozenset({"&&", "||", ";", "|", "&"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_CLI: Any = typer.main.get_command(app)
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Of the command-line library, which typer carries within itself in some versions and not in others."""


class DocsError(AssertionError):
    """What a reader would stumble over."""


def check(script: str) -> None:
    """Raises DocsError for a command that could not work."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DocsError(done.stderr)
    for words in commands(script):
        check_command(words)


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, without redirections, comments and assignments before them."""
    script = re.sub(r"\\\n\s*", " ", script)
    for line in _statements(script):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word not in _OPERATORS:
                command.append(word)
                continue
            kept = _bare(command)
            if kept:
                yield kept
            command = []


def _statements(script: str) -> Iterator[str]:
    """Lines, joined while a quotation is open."""
    held = ""
    for line in script.splitlines():
        held = f"{held}\n{line}" if held else line
        try:
            shlex.split(held, comments=True)
        except ValueError:
            continue
        yield held
        held = ""


def _bare(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word in ("(", ")"):
            skip = False
        elif set(word) <= set("<>&"):
            skip = True  # the file of a redirection
        elif kept or not _ASSIGNMENT.match(word):
            kept.append(word)
    return kept


def check_command(words: Sequence[str]) -> None:
    """Raises DocsError."""
    program = PurePosixPath(words[0]).name
    if program not in PROGRAMS:
        raise DocsError(f"{program}: nobody knows this program; add it to PROGRAMS in tests/docs_shell.py if readers have it")
    look = CHECKS.get(program)
    if look is not None:
        look(list(words[1:]))


def check_tailkeeper(arguments: list[str]) -> None:
    """Parsed by the real command line; nothing is run."""
    try:
        with _CLI.make_context("tailkeeper", list(arguments)) as context:
            _parse_subcommand(_CLI, context)
    except typer.Exit:
        return  # --version, --help
    except _USAGE_ERROR as error:
        raise DocsError(f"tailkeeper {' '.join(arguments)}: {error.format_message()}") from error


def _parse_subcommand(group: Any, context: Any) -> None:
    name, command, arguments = group.resolve_command(context, [*context._protected_args, *context.args])
    with command.make_context(name, arguments, parent=context) as inner:
        if hasattr(command, "commands"):
            _parse_subcommand(command, inner)


def options_of(command: str) -> set[str]:
    """Every option of a command and of its subcommands. Raises DocsError where there is no such command."""
    if command not in _CLI.commands:
        raise DocsError(f"there is no `tailkeeper {command}`")
    found = _CLI.commands[command]
    all_of_it = [found, *getattr(found, "commands", {}).values()]
    return {option for one in all_of_it for parameter in one.params for option in parameter.opts} | {"--help"}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def _check_make(arguments: list[str]) -> None:
    for word in arguments:
        if word.startswith("ARGS="):
            if "demo" in arguments:
                check_tailkeeper(["demo", *shlex.split(word.removeprefix("ARGS="))])
        elif word not in make_targets():
            raise DocsError(f"make {word}: there is no such target")


def _check_sudo(arguments: list[str]) -> None:
    check_command(arguments)


def _check_docker(arguments: list[str]) -> None:
    if arguments[:1] == ["build"]:
        text = _file(arguments, "-f")
        target = arguments[arguments.index("--target") + 1]
        if f" AS {target}\n" not in text:
            raise DocsError(f"docker build --target {target}: the Dockerfile has no such target")
    elif arguments[:2] in (["compose", "exec"], ["compose", "restart"], ["compose", "logs"], ["compose", "run"]):
        services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
        if not services.keys() & set(arguments):
            raise DocsError(f"docker {' '.join(arguments)}: no service of the compose file is named")


def _check_pip(arguments: list[str]) -> None:
    if "-c" in arguments or "-r" in arguments:
        _file(arguments, "-c" if "-c" in arguments else "-r")
    for word in arguments:
        if match := re.fullmatch(r"(?:\.|tailkeeper)\[([a-z,]+)\]", word):
            known = set(re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M))
            if not set(match[1].split(",")) <= known:
                raise DocsError(f"pip install {word}: there is no such extra; {known}")


def _check_python(arguments: list[str]) -> None:
    if arguments[:1] == ["-c"]:
        compile(arguments[1], "documentation", "exec")
    elif arguments[:2] == ["-m", "pip"]:
        _check_pip(arguments[2:])
    elif arguments and arguments[0].endswith(".py") and not (ROOT / arguments[0]).is_file():
        raise DocsError(f"python {arguments[0]}: there is no such file")


def _check_kubectl(arguments: list[str]) -> None:
    for option, path in pairwise(arguments):
        if option in ("-k", "-f") and path.startswith("deploy/") and not (ROOT / path).exists():
            raise DocsError(f"kubectl {option} {path}: there is no such path")
    if "--" in arguments:
        check_command(arguments[arguments.index("--") + 1 :])


def _check_helm(arguments: list[str]) -> None:
    for path in arguments:
        if path.startswith("deploy/") and not (ROOT / path / "Chart.yaml").is_file():
            raise DocsError(f"helm {path}: there is no chart")


def _file(arguments: list[str], option: str) -> str:
    path = ROOT / arguments[arguments.index(option) + 1]
    if not path.is_file():
        raise DocsError(f"{option} {path.name}: there is no such file in the checkout")
    return path.read_text(encoding="utf-8")


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "tailkeeper": check_tailkeeper,
    "make": _check_make,
    "sudo": _check_sudo,
    "docker": _check_docker,
    "pip": _check_pip,
    "python": _check_python,
    "python3": _check_python,
    "kubectl": _check_kubectl,
    "helm": _check_helm,
}
