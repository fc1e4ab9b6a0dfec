"""XML as a tree with line numbers, from expat; features that topology files do not need are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from blinkccl.errors import TopologyError
from blinkccl.topology.limits import MAX_XML_DEPTH, MAX_XML_ELEMENTS, at, shortened


@dataclass(eq=False)
class Element:
    """One element: its attributes, and the line of its start tag. Compared by identity."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Children with this tag, in order."""
        return [child for child in self.children if child.tag == tag]

    def above(self, tag: str) -> Iterator[Element]:
        """Ancestors with this tag, nearest first."""
        parent = self.parent
        while parent is not None:
            if parent.tag == tag:
                yield parent
            parent = parent.parent

    def read(self, key: str, pattern: str, expected: str, source: str) -> str:
        """An attribute that must match ``pattern`` as a whole; the TopologyError names the ``expected`` form."""
        text = self.attributes.get(key, "")
        if not re.fullmatch(pattern, text):
            got = repr(shortened(text, 40)) if key in self.attributes else "nothing"
            raise at(source, self.line, f"<{self.tag}> {key} is {got}, expected {expected}")
        return text

    def below(self, tag: str) -> Iterator[Element]:
        """Descendants with this tag, in document order."""
        stack = self.children[::-1]
        while stack:
            element = stack.pop()
            if element.tag == tag:
                yield element
            stack.extend(element.children[::-1])


class _TreeBuilder:
    """Expat handlers that build the tree within the limits."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self.count += 1
        if self.count > MAX_XML_ELEMENTS:
            raise at(self.source, line, f"more than {MAX_XML_ELEMENTS} elements")
        if len(self.open) >= MAX_XML_DEPTH:
            raise at(self.source, line, f"nested deeper than {MAX_XML_DEPTH} elements")
        parent = self.open[-1] if self.open else None
        element = Element(tag, attributes, line, parent)
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self.open.append(element)

    def end(self, _tag: str) -> None:
        self.open.pop()

    def refuse_doctype(self, *_declaration: object) -> None:
        raise at(
            self.source,
            self.parser.CurrentLineNumber,
            "document types and entities are refused, as no topology format needs them",
        )


def parse_xml(text: str, source: str) -> Element:
    """The root of ``text``; every TopologyError has the line. Document types are refused before they expand."""
    builder = _TreeBuilder(source)
    try:
        builder.parser.Parse(text, True)
    except expat.ExpatError as error:
        raise at(source, error.lineno, f"not well-formed XML: {expat.ErrorString(error.code)}") from None
    if builder.root is None:
        raise TopologyError(f"{source}: no XML element")
    return builder.root
