"""python needed.py PYPROJECT: what the extra `all` installs, one requirement per line, without Thistle itself."""

import re
import sys
import tomllib


def needed(path: str) -> list[str]:
    """The base and every extra that `all` names."""
    with open(path, "rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    (whole,) = extras["all"]
    (names,) = re.findall(r"\[(.*)\]", whole)
    return [*project["dependencies"], *(line for name in names.split(",") for line in extras[name])]


if __name__ == "__main__":
    print(*needed(sys.argv[1]), sep="\n")
