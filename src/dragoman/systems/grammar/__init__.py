"""Actions as text: one definition renders an action, parses it, and constrains the sampler.

A `Form` pairs a frozen dataclass with a template such as `"[Retrieval] {query}"`, a `JsonForm` with a JSON object. A
`OneOf` is a choice of forms. Each gives a constraint for the sampler, so that even an untrained model acts validly. Its
parser is a little more forgiving, for models that run without constraint. For every action that can be rendered,
`parse(render(action)) == action`.
"""

from dragoman.systems.grammar.base import (
    Action,
    Grammar,
    HallucinatedIndex,
    InvalidAction,
    Slot,
    can_say,
)
from dragoman.systems.grammar.forms import Form, OneOf
from dragoman.systems.grammar.json_forms import JsonForm, JsonOneOf, plain, text_of, tuple_of
from dragoman.systems.grammar.lines import Alias, Keywords, Line, Several, Span
from dragoman.systems.grammar.selections import Indices, Titles

__all__ = [
    "Action",
    "Alias",
    "Form",
    "Grammar",
    "HallucinatedIndex",
    "Indices",
    "InvalidAction",
    "JsonForm",
    "JsonOneOf",
    "Keywords",
    "Line",
    "OneOf",
    "Several",
    "Slot",
    "Span",
    "Titles",
    "can_say",
    "plain",
    "text_of",
    "tuple_of",
]
