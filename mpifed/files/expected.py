"""Pydantic's errors in plain words: what was expected of a value; and marks of values, which import nothing of it.

Ranks that are told what rank 0 has read do without pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

MOST = 2**62  # of any count
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"


class Pattern(NamedTuple):
    """Marks a text that the regular expression must match."""

    regex: str

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:  # a core schema
        return {**handler(source), "pattern": self.regex}


class Checked(NamedTuple):
    """Marks a value that a function returns, or refuses by a ValueError."""

    function: Callable[[Any], Any]  # what a function takes and gives is its own

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:  # a core schema
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.function, handler(source))


Text = Annotated[str, Pattern(f"^[^{_CONTROL}]*$")]  # what can be printed at a terminal
Count = Annotated[int, Ge(0), Le(MOST)]
Positive = Annotated[int, Ge(1), Le(MOST)]
NotNegative = Annotated[float, Ge(0)]
Digest = Annotated[str, Pattern("^[0-9a-f]{64}$")]

_EXPECTED = {  # by pydantic's type of the error, with what it knows of the limit
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "named_tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dataclass_type": "a table",
    "literal_error": "{expected}",
    "too_long": "a list of at most {max_length} values",
    "too_short": "a list of at least {min_length} values",
}


def expected(error: Mapping[str, Any]) -> str:  # what pydantic's JSON has
    """What an entry of `ValidationError.errors()` says was expected; the text of an error raised by mpifed as it is."""
    text, known = _EXPECTED.get(error["type"]), error.get("ctx") or {}
    if text is None:
        message: str = error["msg"]
        return message.removeprefix("Value error, ")
    if any(isinstance(value, int) and abs(value) >= 10**6 for value in known.values()):
        text = text.replace(":g", "")  # all digits of a large integer
    return "expected " + text.format(**known).replace("'", '"')
