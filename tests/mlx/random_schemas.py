"""JSON schemas drawn at random: nested, with choices, bounded texts, lists and numbers. Pure."""

import random

_NAMES = ("name", "age", "size", "tags", "city", "note", "kind", "score", "items", "owner", "ok", "when")
_WORDS = ("red", "green", "blue", "small", "large", "one", "two", "yes", "no", "ünï", 'a "b"', "c\\d")
_PATTERNS = ("^[A-Z]{2,4}$", "^\\d{3}-\\d{4}$", "^(ab|cd)+x?$", "[a-z]{1,8}")
_DEEPEST = 3


def random_schema(seed):
    """An object of the seed's own."""
    return _object(random.Random(seed), 1)


def _any(luck, depth):
    kinds = [_text, _text, _integer, _number, _choice, _constant, _yes_or_no]
    if depth < _DEEPEST:
        kinds += [_object, _object, _list, _list, _either]
    return luck.choice(kinds)(luck, depth + 1)


def _object(luck, depth):
    names = luck.sample(_NAMES, luck.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _any(luck, depth) for name in names},
        "required": [name for name in names if luck.random() < 0.8],
        "additionalProperties": False,
    }


def _list(luck, depth):
    least = luck.randint(0, 2)
    return {
        "type": "array",
        "items": _any(luck, depth),
        "minItems": least,
        "maxItems": least + luck.randint(0, 2),
    }


def _either(luck, depth):
    return {"anyOf": [_any(luck, depth) for _ in range(luck.randint(2, 3))]}


def _text(luck, _depth):
    if luck.random() < 0.3:
        return {"type": "string", "pattern": luck.choice(_PATTERNS), "maxLength": 12}
    least = luck.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + luck.randint(0, 16)}


def _integer(luck, _depth):
    least = luck.randint(-1000, 1000)
    bounds = {"minimum": least, "maximum": least + luck.randint(0, 5000)}
    return {
        "type": "integer",
        **(bounds if luck.random() < 0.8 else {"minimum": 0, "multipleOf": 5, "maximum": 999}),
    }


def _number(luck, _depth):
    least = round(luck.uniform(-100, 100), 2)
    kind = luck.choice(("minimum", "exclusiveMinimum"))
    return {"type": "number", kind: least, "maximum": round(least + luck.uniform(0.5, 100), 2)}


def _choice(luck, _depth):
    return {
        "enum": luck.sample(_WORDS, luck.randint(1, 4))
        + luck.sample([None, True, 7, -1.5], luck.randint(0, 2))
    }


def _constant(luck, _depth):
    return {"const": luck.choice(_WORDS)}


def _yes_or_no(luck, _depth):
    return {"type": ["boolean", "null"] if luck.random() < 0.3 else "boolean"}
