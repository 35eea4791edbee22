//! Traced requests, as Python sees them.

use pyo3::prelude::*;

use crate::plane::{self, Code, SpanKind};

#[derive(Clone, IntoPyObject)]
pub(super) enum Attribute {
    Text(String),
    Number(i64),
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Span {
    name: &'static str,
    kind: &'static str,
    id: u64,
    parent: Option<u64>,
    began_ns: u64,
    ended_ns: u64,
    answered_ns: Option<u64>,
    code: Option<&'static str>,
    attributes: Vec<(&'static str, Attribute)>,
}

impl From<plane::Span> for Span {
    fn from(span: plane::Span) -> Self {
        let attributes = span.attributes.into_iter();
        Self {
            name: span.name,
            kind: match span.kind {
                SpanKind::Server => "server",
                SpanKind::Client => "client",
                SpanKind::Internal => "internal",
            },
            id: span.id,
            parent: span.parent,
            began_ns: span.began_ns,
            ended_ns: span.ended_ns,
            answered_ns: span.answered_ns,
            code: span.code.map(Code::name),
            attributes: attributes
                .map(|(key, value)| match value {
                    plane::Attribute::Text(text) => (key, Attribute::Text(text)),
                    plane::Attribute::Number(number) => (key, Attribute::Number(number)),
                })
                .collect(),
        }
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Span>()
}
