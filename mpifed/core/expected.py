"""Pydantic's errors in plain words: what was expected of a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
