"""Print the oldest version that settings.ini allows of each requirement, as constraints for pip: `numpy==1.26`.

python tools/lower_bounds.py requirements                         of what the package needs
python tools/lower_bounds.py requirements dev_requirements --only torch pytest --without torch
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)>=([0-9][^,;]*)(?:,[^;]*)?(;.*)?")


def bounds(settings: Path, keys: Sequence[str]) -> dict[str, str]:
    """Return the constraint of each requirement listed below `keys`, by name.

    Raises:
        ValueError: when one has no lower bound, or two different ones.
    """
    ini = ConfigParser(delimiters=["="])
    ini.read(settings, encoding="utf-8")
    found: dict[str, str] = {}
    for requirement in (r for key in keys for r in ini["DEFAULT"][key].split()):
        parts = REQUIREMENT.fullmatch(requirement)
        if not parts:
            raise ValueError(f"{requirement} has no lower bound")
        name, least, marker = parts[1], parts[2], parts[3]
        line = f"{name}=={least}" + (f" {marker.replace(';', '; ', 1)}" if marker else "")
        if found.setdefault(name, line) != line:
            raise ValueError(f"{found[name]}, and {line}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="+", help="of settings.ini: requirements, dev_requirements")
    parser.add_argument("--only", nargs="*", default=[], help="of all but the first key: only these")
    parser.add_argument("--without", nargs="*", default=[], help="these not")
    args = parser.parse_args(argv)
    lines = bounds(ROOT / "settings.ini", args.keys[:1]) | _chosen(bounds(ROOT / "settings.ini", args.keys[1:]), args.only)
    print(*(line for name, line in lines.items() if name not in args.without), sep="\n")
    return 0


def _chosen(lines: dict[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: line for name, line in lines.items() if not names or name in names}


if __name__ == "__main__":
    sys.exit(main())
