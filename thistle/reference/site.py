"""What `make docs` adds to the documents: a page for each strategy and attack, from the registration, and notebooks.

mkdocs reads this file as a hook. The pages exist in the site only, so they are never stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thistle.reference.methods import attack_pages, strategy_pages
from thistle.reference.notebooks import notebook_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

PAGES: dict[str, Callable[[], dict[str, str]]] = {"Strategies": strategy_pages, "Attacks": attack_pages}
"""By the section of the navigation that they go to; its folder is that word in small letters."""
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:examples|README|CONTRIBUTING|LICENSE)[^)]*\)")

FETCHED = re.compile(r'<script src="https://[^"]*iframe-worker[^"]*"></script>')


def _path(section: str, name: str) -> str:
    return f"methods/{section.lower()}/{name}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Into the navigation, below what stands there."""
    for section, pages in PAGES.items():
        _section(config.nav, section).extend({name: _path(section, name)} for name in pages())
    return config


def _section(nav: Any, wanted: str) -> list[Any]:
    """The list of the section with this title, wherever it stands."""
    for entry in nav:
        for title, content in entry.items() if isinstance(entry, dict) else ():
            if isinstance(content, list):
                if title == wanted:
                    return content
                try:
                    return _section(content, wanted)
                except LookupError:
                    continue
    raise LookupError(f"no section {wanted!r} in the navigation")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages themselves."""
    from mkdocs.structure.files import File

    for section, pages in PAGES.items():
        for name, text in pages().items():
            files.append(File.generated(config, _path(section, name), content=text))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook_page(Path(str(file.abs_src_path)))
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Files of the repository beside the documents are no pages: their links become plain text."""
    return OUTSIDE.sub(r"\1", markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """The theme would fetch the helper of its search from elsewhere; ours comes with the site."""
    return _with_own_helper(output, "../" * page.url.count("/"))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same on pages that are none of the documents, such as 404.html."""
    return _with_own_helper(output_content, "")


def _with_own_helper(html: str, root: str) -> str:
    return FETCHED.sub(f'<script src="{root}assets/search-from-disk.js"></script>', html)
