//! A chat template in the environment Hugging Face templates are written for.

use std::fmt::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, context, escape_formatter};

use super::blanks::{call_method, trim};
use super::python_json::dumps;
use super::{Message, TextRules};
use crate::error::TextError;

const NAME: &str = "chat";

#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    rules: TextRules,
}

impl ChatTemplate {
    pub fn compile(rules: TextRules) -> Result<Self, TextError> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(|error| TextError::Template(told(&error)))?);
        environment.set_formatter(as_python_writes);
        environment.set_unknown_method_callback(call_method);
        environment.add_filter("trim", trim);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, plain_generation(&rules.chat_template))
            .map_err(|error| TextError::Template(told(&error)))?;
        Ok(Self { environment, rules })
    }

    pub fn source(&self) -> &str {
        &self.rules.chat_template
    }

    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|each| context! { role => &each.role, content => &each.content })
            .collect();
        let template = self.environment.get_template(NAME);
        let written = template.and_then(|template| {
            template.render(context! {
                messages,
                add_generation_prompt => true,
                bos_token => &self.rules.bos_token,
                eos_token => &self.rules.eos_token,
            })
        });
        written.map_err(|error| TextError::Chat(told(&error)))
    }
}

/// What a template says itself, or the kind of what went wrong.
fn told(error: &Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// `None`, `True` and `False` as Python writes them.
fn as_python_writes(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => Ok(out.write_str("None")?),
        ValueKind::Bool => Ok(out.write_str(if value.is_true() { "True" } else { "False" })?),
        _ => escape_formatter(out, state, value),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "filters take their options so"
)]
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // The rest is Python's: what it asks for is how this writes anyhow.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let written = dumps(value, indent);
    let written =
        written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(written))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(layout: &str) -> Result<String, Error> {
    let mut written = String::new();
    write!(written, "{}", chrono::Local::now().format(layout)).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("no date layout: {layout:?}"),
        )
    })?;
    Ok(written)
}

/// `{% generation %}`, by which templates mark the assistant's words for training, is just text: it
/// becomes a block that is always written, since its signs trim blanks as those of any block.
fn plain_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, inside)) = rest.split_once("{%") {
        let Some((tag, after)) = inside.split_once("%}") else {
            break;
        };
        out.push_str(before);
        let (open, word, close) = signs(tag);
        match word {
            "generation" => out.extend(["{%", open, " if true ", close, "%}"]),
            "endgeneration" => out.extend(["{%", open, " endif ", close, "%}"]),
            _ => out.extend(["{%", tag, "%}"]),
        }
        rest = after;
    }
    out + rest
}

/// Of what stands between the signs of a block: its sign for trimming before, its words, that after.
fn signs(tag: &str) -> (&str, &str, &str) {
    let is_sign = |sign: char| sign == '-' || sign == '+';
    let start = usize::from(tag.starts_with(is_sign));
    let end = tag.len() - usize::from(tag.len() > start && tag.ends_with(is_sign));
    (&tag[..start], tag[start..end].trim(), &tag[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str, content: &str) -> Result<String, TextError> {
        let rules = TextRules {
            chat_template: source.to_owned(),
            bos_token: "<s>".to_owned(),
            ..TextRules::default()
        };
        ChatTemplate::compile(rules)?.render(&[Message {
            role: "user".to_owned(),
            content: content.to_owned(),
        }])
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let source = "{{ none }} {{ true }} {{ 1 == 2 }} {{ messages[0].get('x') }} {{ missing }}|";
        assert_eq!(rendered(source, "").unwrap(), "None True False None |");
        let source = "{{ messages[0] | tojson }}";
        assert_eq!(
            rendered(source, "<\"é>").unwrap(),
            r#"{"role": "user", "content": "<\"é>"}"#
        );
    }

    #[test]
    fn marks_of_training_are_just_text() {
        let source = "a {%- generation -%} {{ messages[0].content }} {%- endgeneration %} b";
        assert_eq!(rendered(source, "x").unwrap(), "ax b");
    }

    #[test]
    fn what_a_template_says_when_it_refuses_is_told() {
        let refused = rendered("{{ raise_exception('roles must alternate') }}", "");
        assert_eq!(
            refused,
            Err(TextError::Chat("roles must alternate".to_owned()))
        );
        assert!(matches!(
            rendered("{% if %}", ""),
            Err(TextError::Template(_))
        ));
        assert!(matches!(
            rendered("{{ strftime_now('%Q') }}", ""),
            Err(TextError::Chat(_))
        ));
    }

    #[test]
    fn methods_and_loops_of_python_work() {
        let source = "{{ bos_token }}{% for m in messages %}{{ loop.index0 }}{{ m['role'].upper() }}\
                      {{ m.content.strip().split(' ')[-1] }}{% endfor %}{% set ns = namespace(a=1) %}\
                      {% set ns.a = 2 %}{{ ns.a }}{{ strftime_now('%Y') | length }}";
        assert_eq!(rendered(source, " a b ").unwrap(), "<s>0USERb24");
    }
}
