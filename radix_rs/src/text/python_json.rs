//! JSON as Python's `json.dumps` lays it out: a blank after commas and colons, no HTML escapes.

use std::io;

use minijinja::Value;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// On one line, or with `indent` blanks a level.
pub(super) fn dumps(value: &Value, indent: Option<usize>) -> serde_json::Result<String> {
    match indent {
        None => written(value, Spaced),
        Some(blanks) => written(
            value,
            PrettyFormatter::with_indent(" ".repeat(blanks).as_bytes()),
        ),
    }
}

fn written(value: &Value, layout: impl Formatter) -> serde_json::Result<String> {
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut out, layout,
    ))?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}
