//! Which trace a call is part of, as W3C Trace Context (<https://www.w3.org/TR/trace-context/>) says it.

use std::fmt::{self, Display, Formatter};

use http::{HeaderMap, HeaderValue};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Of version 00; later ones begin alike.
const LENGTH: usize = 55;

const SAMPLED: u8 = 1;

/// Flags with a meaning in version 00: it is sampled, its trace's id is random.
const KNOWN_FLAGS: u8 = 3;

/// A span, as the calls that are part of it name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub trace: u128,
    pub span: u64,
    flags: u8,
}

impl TraceContext {
    /// Of a new trace.
    pub fn new(trace: u128, span: u64) -> Self {
        Self {
            trace,
            span,
            flags: 0,
        }
    }

    /// None if the caller names none, or so that nobody can tell which.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        match (all.next(), all.next()) {
            (Some(value), None) => Self::parse(value.as_bytes()),
            _ => None,
        }
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (known, later) = value.split_at_checked(LENGTH)?;
        let version = hex(&known[..2])?;
        let is_whole = match later {
            [] => version != 0xff,
            [b'-', ..] => !matches!(version, 0 | 0xff),
            _ => false,
        };
        let has_dashes = [2, 35, 52].iter().all(|place| known[*place] == b'-');
        let trace = hex(&known[3..35])?;
        let span = u64::try_from(hex(&known[36..52])?).ok()?;
        let flags = u8::try_from(hex(&known[53..])?).ok()?;
        (is_whole && has_dashes && trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            flags: flags & KNOWN_FLAGS,
        })
    }

    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub fn with_sampled(self, is_sampled: bool) -> Self {
        let others = self.flags & !SAMPLED;
        Self {
            flags: others | u8::from(is_sampled),
            ..self
        }
    }

    /// Another span of the same trace.
    pub fn with_span(self, span: u64) -> Self {
        Self { span, ..self }
    }

    /// In the place of what a caller said. `begins`: of a trace that begins here, about which nobody before can have
    /// said more.
    pub fn write(self, begins: bool, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::try_from(self.to_string()) {
            headers.insert(TRACEPARENT, value);
        }
        if begins {
            headers.remove(TRACESTATE);
        }
    }
}

impl Display for TraceContext {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace, self.span, self.flags
        )
    }
}

/// The number of lower-case digits, at most 32.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(value: &str) -> Option<TraceContext> {
        TraceContext::parse(value.as_bytes())
    }

    #[test]
    fn what_is_read_is_written_again() {
        let context = read(KNOWN).unwrap();
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.span, 0x00f0_67aa_0ba9_02b7);
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), KNOWN);
        let other = context.with_span(7).with_sampled(false);
        assert_eq!(
            other.to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-00"
        );
    }

    #[test]
    fn later_versions_may_say_more_and_their_flags_are_not_ours() {
        let context = read(&format!("cc{}-what-comes", &KNOWN[2..])).unwrap();
        assert_eq!(context.to_string(), KNOWN);
        let flags = read(&format!("{}fe", &KNOWN[..53])).unwrap();
        assert_eq!(flags.to_string(), format!("{}02", &KNOWN[..53]));
    }

    #[test]
    fn what_names_no_span_is_none() {
        for wrong in [
            "",
            "00-1-2-03",
            &KNOWN[..54],
            &format!("{KNOWN}-"),
            &format!("{KNOWN}0"),
            &format!("ff{}", &KNOWN[2..]),
            &format!("cc{}.", &KNOWN[2..]),
            &KNOWN.to_uppercase(),
            &KNOWN.replacen('-', "_", 1),
            &KNOWN.replace("00f067aa0ba902b7", "0000000000000000"),
            &KNOWN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn two_are_none_and_who_begins_a_trace_ends_what_was_said_of_another() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(KNOWN));
        let context = TraceContext::read(&headers).unwrap();
        headers.append(TRACEPARENT, HeaderValue::from_static(KNOWN));
        headers.append(TRACESTATE, HeaderValue::from_static("a=1"));
        assert_eq!(TraceContext::read(&headers), None);
        context.write(false, &mut headers);
        assert_eq!(TraceContext::read(&headers), Some(context));
        assert!(headers.contains_key(TRACESTATE));
        context.write(true, &mut headers);
        assert!(!headers.contains_key(TRACESTATE));
    }
}
