"""Schemas with each keyword, and values to try on them; whether a value fits is said by `jsonschema`."""

D7 = "http://json-schema.org/draft-07/schema#"

VALUES = [
    *(None, True, False, 0, 1, 3, 5, -2, 1.5, "", "a", "foo", "bar", "foobar"),
    *([], [1], [1, 1], [1, 2], ["a", "a"], ["a", 1, "b"], [1, 2, 3], [True, False], [True, True], [[1], [1]]),
    *({}, {"a": 1}, {"foo": 1}, {"bar": "x"}, {"foo": 1, "bar": 2}, {"foo": "x", "bar": 2}, {"bar": 1}),
    *({"foo": 2, "a": 1}, {"foo": 1, "bar": 2, "quux": 3}, {"foo": [], "bar": {}}, {"foo": {"bar": 1}}),
]

EXTENDS = {"$defs": {"base": {"properties": {"foo": {}}}}, "$ref": "#/$defs/base"}

SCHEMAS = [
    # not
    {"not": {"type": "string"}},
    {"not": {"type": ["string", "null"]}},
    {"not": {"type": "integer"}},
    {"not": {"const": "foo"}},
    {"not": {"enum": ["foo", "foobar", 1, None]}},
    {"not": {"enum": [[1, 2], {"foo": 1}]}},
    {"not": {"required": ["foo"]}},
    {"not": {"type": "object", "properties": {"foo": {"type": "string"}}}},
    {"not": {"properties": {"foo": {"const": 1}}, "required": ["bar"]}},
    {"not": {"minimum": 3}},
    {"not": {"minLength": 2}},
    {"not": {"items": {"type": "string"}}},
    {"not": {"contains": {"const": 1}}},
    {"not": {"anyOf": [{"type": "object"}, {"minItems": 2}]}},
    {"not": {"allOf": [{"type": "object"}, {"required": ["foo"]}]}},
    {"not": {"not": {"type": "string"}}},
    {"not": {"if": {"type": "string"}, "then": {"minLength": 2}}},
    {"not": False},
    # if, then, else
    {"if": {"exclusiveMaximum": 0}, "then": {"minimum": -10}, "else": {"multipleOf": 2}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"if": {"type": "string"}, "else": {"type": "number"}},
    {"if": {"properties": {"foo": {"const": 1}}, "required": ["foo"]}, "then": {"required": ["bar"]}},
    {"if": {"const": 0}},
    {"then": {"const": 0}, "else": {"const": 1}},
    {"if": True, "then": {"const": "foo"}, "else": {"const": "bar"}},
    {"allOf": [{"if": {"exclusiveMaximum": 0}}, {"then": {"minimum": -10}}, {"else": {"multipleOf": 2}}]},
    # dependencies
    {"dependentRequired": {"bar": ["foo"]}},
    {"dependentRequired": {"quux": ["foo", "bar"]}},
    {"dependentRequired": {"bar": []}},
    {"dependentSchemas": {"bar": {"properties": {"foo": {"type": "integer"}, "bar": {"type": "integer"}}}}},
    {"dependentSchemas": {"foo": True, "bar": False}},
    {
        "properties": {"foo": {}},
        "dependentSchemas": {"foo": {"properties": {"bar": {}}, "additionalProperties": False}},
    },
    {"$schema": D7, "dependencies": {"bar": ["foo"], "a": {"maxProperties": 1}}},
    # names and numbers of properties
    {"propertyNames": {"maxLength": 3}},
    {"propertyNames": {"pattern": "^f"}},
    {"propertyNames": False},
    {"propertyNames": True},
    {"propertyNames": {"const": "foo"}},
    {"propertyNames": {"enum": ["foo", "bar"]}},
    {"propertyNames": {"anyOf": [{"const": "foo"}, {"const": "bar"}]}},
    {
        "properties": {"foo": {"type": "integer"}},
        "propertyNames": {"pattern": "^[fb]"},
        "additionalProperties": {"type": "string"},
    },
    {"minProperties": 1, "properties": {"foo": {}, "a": {}}},
    {"minProperties": 2, "properties": {"foo": {}, "bar": {}, "quux": {}}, "additionalProperties": False},
    {"maxProperties": 1, "properties": {"foo": {}, "bar": {}}, "additionalProperties": False},
    {"minProperties": 2},
    {"maxProperties": 1},
    # contains
    {"contains": {"minimum": 5}},
    {"contains": {"const": 1}},
    {"contains": True},
    {"contains": False},
    {"contains": {"const": 1}, "maxContains": 1},
    {"contains": {"const": 1}, "minContains": 2},
    {"contains": {"const": 1}, "minContains": 0},
    {"contains": {"const": 1}, "minContains": 0, "maxContains": 1},
    {"contains": {"const": 1}, "minContains": 2, "maxContains": 1},
    {"items": {"type": "integer"}, "contains": {"minimum": 2}},
    # uniqueItems
    {"uniqueItems": True},
    {"uniqueItems": False},
    {"items": {"type": "boolean"}, "uniqueItems": True},
    {"items": {"type": "string"}, "uniqueItems": True},
    {"items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
    {"uniqueItems": True, "maxItems": 1},
    {"prefixItems": [{"type": "boolean"}, {"type": "integer"}], "items": False, "uniqueItems": True},
    # oneOf
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "object", "required": ["foo"]}]},
    {"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 4}]},
    {"oneOf": [True, False, False]},
    {"oneOf": [{"required": ["foo"]}, {"required": ["bar"]}]},
    {"type": "object", "oneOf": [{"required": ["foo", "bar"]}, {"required": ["foo", "quux"]}]},
    {"oneOf": [{"type": "number"}, {}]},
    {"oneOf": [{"oneOf": [{"type": "null"}]}]},
    {
        "oneOf": [
            {"properties": {"foo": {"const": 1}, "bar": {"type": "integer"}}, "required": ["foo"]},
            {"properties": {"foo": {"const": "x"}}, "required": ["foo"]},
        ]
    },
    {  # apart by what stands beside it
        "required": ["foo"],
        "oneOf": [
            {"properties": {"foo": {"enum": [1]}, "bar": {"type": "integer"}}},
            {"properties": {"foo": {"enum": ["x"]}, "bar": {"pattern": "x"}}},
        ],
    },
    {
        "allOf": [
            {"type": "object", "required": ["foo"]},
            {
                "oneOf": [
                    {"properties": {"foo": {"const": 1}}},
                    {"properties": {"foo": {"not": {"const": 1}}}},
                ]
            },
        ]
    },
    {
        "anyOf": [{"oneOf": [{"minimum": 3, "multipleOf": 1}, {"maximum": 4}]}, {"type": "object"}],
        "allOf": [{"maximum": 2, "oneOf": [{"type": ["number", "object"]}, {"type": "string"}]}],
    },
    {  # two that need each other
        "allOf": [
            {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
            {"oneOf": [{"maximum": 3}, {"maximum": 1}]},
        ]
    },
    {  # closed objects, which overlap in {}
        "oneOf": [
            {"type": "object", "properties": {"foo": {}, "a": {}}, "additionalProperties": False},
            {"type": "object", "properties": {"foo": {}, "bar": {}}, "additionalProperties": False},
        ]
    },
    {  # what cannot be negated is the same in both
        "oneOf": [
            {"required": ["foo"], "properties": {"quux": {"multipleOf": 2}}, "type": "object"},
            {"required": ["bar"], "properties": {"quux": {"multipleOf": 2}}, "type": "object"},
        ]
    },
    {"oneOf": [{"oneOf": [{"required": ["foo"]}, {"required": ["bar"]}]}, {"required": ["a"]}]},
    {"not": {"oneOf": [{"type": "object"}, {"required": ["foo"]}, {"minItems": 2}]}},
    {"not": {"dependentSchemas": {"foo": {"required": ["bar"]}}}},
    {"$schema": D7, "not": {"dependencies": {"foo": ["bar"], "a": {"maxProperties": 1}}}},
    {"not": {"prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}},
    {
        "$schema": D7,
        "oneOf": [
            {"type": "array", "items": {"type": "integer"}, "additionalItems": False},
            {"type": "array", "items": {"minimum": 2}, "additionalItems": False},
        ],
    },
    {
        "$schema": D7,
        "properties": {"foo": {}},
        "dependencies": {
            "foo": {
                "oneOf": [
                    {"properties": {"foo": {"enum": [1]}, "bar": {}}, "additionalProperties": False},
                    {"properties": {"foo": {"enum": ["x", 2]}}, "additionalProperties": False},
                ]
            }
        },
    },
    # patterns
    {"not": {"pattern": "^f"}},
    {"not": {"pattern": "o|r$"}},
    {"not": {"pattern": "^[a-z]*$"}},
    {"oneOf": [{"pattern": "^f"}, {"pattern": "r$"}]},
    {"type": "object", "oneOf": [{"properties": {"foo": {"pattern": "^x$"}}}, {"required": ["bar"]}]},
    {"if": {"pattern": "^f"}, "then": {"minLength": 4}, "else": {"maxLength": 0}},
    {"pattern": "^(?!foo)"},
    {"pattern": "^(?!foo$|a)(?=.*o)[a-z]*$"},
    {"propertyNames": {"pattern": "^(?!foo)"}},
    {"patternProperties": {"^f": {"type": "integer"}, "o$": {"minimum": 2}}},
    {"patternProperties": {"^(?!foo)": False}},
    {
        "properties": {"foo": {"type": "integer"}},
        "patternProperties": {"": {"minimum": 2}, "a|q": {"type": "integer"}},
        "additionalProperties": False,
    },
    # unevaluated
    {"unevaluatedProperties": False},
    {"properties": {"foo": {}}, "allOf": [{"properties": {"bar": {}}}], "unevaluatedProperties": False},
    {**EXTENDS, "properties": {"bar": {}}, "unevaluatedProperties": False},
    {
        "properties": {"foo": {}},
        "anyOf": [
            {"properties": {"bar": {"const": 2}}, "required": ["bar"]},
            {"properties": {"quux": {"const": 3}}, "required": ["quux"]},
        ],
        "unevaluatedProperties": False,
    },
    {
        "if": {"properties": {"foo": {"const": 1}}, "required": ["foo"]},
        "then": {"properties": {"bar": {}}},
        "else": {"properties": {"a": {}}},
        "unevaluatedProperties": False,
    },
    {"dependentSchemas": {"foo": {"properties": {"bar": {}}}}, "unevaluatedProperties": False},
    {"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [True, True]}], "unevaluatedItems": False},
    {"unevaluatedItems": False},
    {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    {"allOf": [{"prefixItems": [True, {"type": "integer"}]}], "unevaluatedItems": {"type": "string"}},
    # formats that are annotations
    {"format": "color"},
    {"type": "string", "format": "regex"},
    # items of older drafts
    {
        "$schema": D7,
        "allOf": [{"items": [{"type": "integer"}, {"type": "string"}]}],
        "items": [{"type": "integer"}],
        "additionalItems": {"type": "boolean"},
    },
    {"$schema": D7, "allOf": [{"items": [{"type": "integer"}]}], "additionalItems": {"type": "boolean"}},
    {"$schema": D7, "items": {"type": "integer"}, "additionalItems": False},
    {"$schema": D7, "items": [{"type": "integer"}], "additionalItems": False},
]
