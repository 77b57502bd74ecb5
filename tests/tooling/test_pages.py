"""The built book as a reader without a network gets it."""

import re

# what a program is told when nobody answers; a class such as ConnectionError may well stand in the text
UNREACHED = re.compile(
    r"Max retries exceeded|Name or service not known|Temporary failure in name resolution|getaddrinfo failed"
    r"|Network is unreachable|Connection refused|Cannot connect to proxy|ProxyError|urlopen error"
)


def test_no_page_prints_that_nothing_was_reached(html):
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted(html.glob("nbs/*.html"))}
    assert len(pages) > 20
    found = {name: UNREACHED.search(text) for name, text in pages.items()}
    assert {name: match[0] for name, match in found.items() if match} == {}
