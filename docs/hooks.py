"""What mkdocs is told beside mkdocs.yml: pages that lie outside of docs/, and links that lead out of it.

Links are written for readers of the repository. On the site, one to a file that is no page becomes a link to the
repository where ``repo_url`` is set, and else the file's path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: file of the repository: page of the site
OUTSIDE = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/HISTORY.md": "project/history.md",
}
_FILES = {page: file for file, page in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?\.?")  # Sphinx's roles, in docstrings


def on_files(files, config):
    from mkdocs.structure.files import File

    for file, page in OUTSIDE.items():
        with open(os.path.join(ROOT, file), encoding="utf-8") as text:
            files.append(File.generated(config, page, content=text.read()))
    return files


def on_page_markdown(markdown, page, config, files):
    source = _FILES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return links(markdown, source, lambda path: os.path.exists(os.path.join(ROOT, path)), config.repo_url or "")


def on_page_content(html, page, config, files):
    return _ROLE.sub("<code>", html)


def links(markdown: str, source: str, exists: Callable[[str], bool], repository: str = "") -> str:
    """``markdown`` of the file ``source`` with links as the site has them; paths are from the repository's top. Raises
    ValueError for a link to what is not there."""
    here = os.path.dirname(OUTSIDE.get(source, os.path.relpath(source, "docs")))

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        if "://" in target:
            return found.group()
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path in OUTSIDE or path.startswith("docs/"):
            page = OUTSIDE.get(path) or os.path.relpath(path, "docs")
            return f"{mark}[{text}]({os.path.relpath(page, here or '.')}{anchor or ''})"
        if not exists(path):
            raise ValueError(f"{source} links to {path}, which is not there")
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{path})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(link, markdown)
