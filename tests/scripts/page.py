# SPDX-License-Identifier: BSD-2-Clause
"""A page of HTML as tests look at it."""

import html.parser


class Page(html.parser.HTMLParser):
    """Checks that tags match, and notes what the page refers to."""

    EMPTY = {"meta", "br", "img", "link"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.references = [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.references += [value for name, value in attributes.items()
                            if name in ("href", "src", "xlink:href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
