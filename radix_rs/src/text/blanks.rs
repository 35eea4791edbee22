//! Blanks as Python knows them, in whose words chat templates are written.

use std::borrow::Cow;

use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// What `str.strip` takes off: Unicode's white space and four separators beside it.
pub(super) fn is_blank(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The filter of that name.
#[expect(
    clippy::needless_pass_by_value,
    reason = "filters take their arguments so"
)]
pub(super) fn trim(text: Cow<'_, str>, of: Option<Cow<'_, str>>) -> String {
    let trimmed = match of {
        None => text.trim_matches(is_blank),
        Some(of) => text.trim_matches(|character| of.contains(character)),
    };
    trimmed.to_owned()
}

/// Methods of Python's values.
pub(super) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), []) = (value.as_str(), arguments) {
        match method {
            "strip" => return Ok(text.trim_matches(is_blank).into()),
            "lstrip" => return Ok(text.trim_start_matches(is_blank).into()),
            "rstrip" => return Ok(text.trim_end_matches(is_blank).into()),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, method, arguments)
}
