"""`make generate`: bring the generated parts of the documents up to date."""

from __future__ import annotations

from thistle.reference.documents import stale


def main() -> None:
    """Write what is stale, and say so."""
    outdated = stale()
    for path, text in outdated.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path}: written")
    if not outdated:
        print("everything that is generated is up to date")


if __name__ == "__main__":
    main()
