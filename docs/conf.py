"""The documentation site: `make docs` (ADR 0006). It is built from the files that people read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemill import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Tidemill"
version = release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Tidemill {version}"
html_show_sphinx = False
html_show_copyright = False

ROOT_PAGES = {
    "ARCHITECTURE": "internals/architecture",
    "CHANGELOG": "changes",
    "CONTRIBUTING": "contributing",
    "README": "index",
    "SECURITY": "security",
    "STYLE": "style",
}
"""Files of the project's root, and the pages that include them."""
ROOT_LINK = re.compile(rf"\]\((?:\.\./)*({'|'.join(ROOT_PAGES)})\.md\)")


def link_pages(_app: Sphinx, *place: object) -> None:
    """Let links to a file of the root lead to its page; the text comes last, as a list of one."""
    content = place[-1]
    assert isinstance(content, list)
    content[0] = ROOT_LINK.sub(lambda link: f"](/{ROOT_PAGES[link[1]]}.md)", content[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_pages)
    app.connect("include-read", link_pages)
