"""`python -m intarsia COMMAND`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence


def _doctor() -> int:
    try:
        from .tools.doctor import doctor
    except Exception as error:  # torch does not load, or another package that is needed
        print(f"Intarsia cannot be loaded: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return doctor()


COMMANDS: dict[str, tuple[Callable[[], int], str]] = {
    "doctor": (_doctor, "what was found on this machine; compiles and checks one kernel"),
}


def main(arguments: Sequence[str]) -> int:
    """Runs one command; 2 and the usage for anything else."""
    wants_help = list(arguments) in (["-h"], ["--help"])
    if len(arguments) == 1 and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]][0]()
    lines = ["usage: python -m intarsia COMMAND", "", *(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())]
    if arguments and not wants_help:
        lines.insert(0, f"python -m intarsia: unknown command {' '.join(arguments)!r}")
    print("\n".join(lines), file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
