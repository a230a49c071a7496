//! The table of keywords: what each holds, and whether it can be enforced.

/// What a keyword is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A schema.
    Schema,
    /// A schema for each name.
    Schemas,
    /// A list of schemas that hold besides the others.
    All,
    /// A list of schemas of which one holds.
    Alternatives,
    /// A list of schemas, or one schema.
    Items,
    /// A whole number from 0 on.
    Count,
    /// A number, or true or false as the fourth draft has it.
    Bound,
    /// A number above 0.
    Divisor,
    /// A regular expression.
    Pattern,
    /// A name of a format.
    Format,
    /// A name of a type, or a list of them.
    Type,
    /// A list of names.
    Names,
    /// A list of values.
    Values,
    /// Any value.
    Value,
    /// A reference to another place of the schema.
    Reference,
    /// Schemas that only count where they are referred to.
    Definitions,
    /// Restricts in a way that cannot be enforced.
    Refused,
}

/// Every keyword that restricts what is valid. Others are remarks and are left out.
pub(crate) const KEYWORDS: &[(&str, Kind)] = &[
    ("type", Kind::Type),
    ("enum", Kind::Values),
    ("const", Kind::Value),
    ("$ref", Kind::Reference),
    ("$defs", Kind::Definitions),
    ("definitions", Kind::Definitions),
    ("allOf", Kind::All),
    ("anyOf", Kind::Alternatives),
    ("oneOf", Kind::Alternatives),
    ("properties", Kind::Schemas),
    ("patternProperties", Kind::Schemas),
    ("additionalProperties", Kind::Schema),
    ("required", Kind::Names),
    ("minProperties", Kind::Count),
    ("maxProperties", Kind::Count),
    ("items", Kind::Items),
    ("prefixItems", Kind::Items),
    ("additionalItems", Kind::Schema),
    ("minItems", Kind::Count),
    ("maxItems", Kind::Count),
    ("minLength", Kind::Count),
    ("maxLength", Kind::Count),
    ("pattern", Kind::Pattern),
    ("format", Kind::Format),
    ("minimum", Kind::Bound),
    ("maximum", Kind::Bound),
    ("exclusiveMinimum", Kind::Bound),
    ("exclusiveMaximum", Kind::Bound),
    ("multipleOf", Kind::Divisor),
    ("not", Kind::Refused),
    ("if", Kind::Refused),
    ("then", Kind::Refused),
    ("else", Kind::Refused),
    ("contains", Kind::Refused),
    ("minContains", Kind::Refused),
    ("maxContains", Kind::Refused),
    ("uniqueItems", Kind::Refused),
    ("propertyNames", Kind::Refused),
    ("dependencies", Kind::Refused),
    ("dependentRequired", Kind::Refused),
    ("dependentSchemas", Kind::Refused),
    ("unevaluatedItems", Kind::Refused),
    ("unevaluatedProperties", Kind::Refused),
    ("$dynamicRef", Kind::Refused),
    ("$recursiveRef", Kind::Refused),
];

/// Formats that are enforced.
pub(crate) const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Formats of the standard that are not. Names that are not in the standard are remarks.
pub(crate) const FORMATS_REFUSED: &[&str] = &[
    "idn-email",
    "idn-hostname",
    "uri-reference",
    "iri",
    "iri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// Names of types.
pub(crate) const TYPES: &[&str] = &["null", "boolean", "integer", "number", "string", "array", "object"];

/// Whether a keyword restricts anything by itself.
pub(crate) fn restricts(name: &str) -> bool {
    kind(name).is_some_and(|kind| kind != Kind::Definitions)
}

/// The kind of a keyword, if it restricts anything.
pub(crate) fn kind(name: &str) -> Option<Kind> {
    KEYWORDS.iter().find(|(keyword, _)| *keyword == name).map(|(_, kind)| *kind)
}
