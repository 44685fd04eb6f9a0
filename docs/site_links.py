"""Links that leave docs/ lead to the repository: GitHub follows them as paths, the site needs addresses."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]+)(?=[)#])")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace relative links to files outside docs/ with the repository's addresses (a hook of MkDocs)."""

    def address(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[1]))
        return link[1] if path.startswith("docs/") else f"{config['repo_url']}/blob/main/{path}"

    return _LINK.sub(address, markdown)
