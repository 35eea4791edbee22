//! How a call ends: gRPC's codes, and what is said with them.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};

/// A gRPC status code, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "gRPC's own names")]
pub enum Code {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

/// Every code with its name, in the order of their numbers.
pub(crate) const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

impl Code {
    /// The code of a number; what gRPC does not know is UNKNOWN.
    pub fn from_number(number: usize) -> Self {
        CODES.get(number).map_or(Self::Unknown, |(code, _)| *code)
    }

    /// gRPC's name of it.
    pub fn name(self) -> &'static str {
        CODES[self as usize].1
    }

    /// What a call means that HTTP refused, as gRPC maps it.
    fn from_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// What a stream or connection means that broke.
    pub(crate) fn from_h2(error: &h2::Error) -> Self {
        if error.is_reset() {
            match error.reason() {
                Some(h2::Reason::CANCEL) => return Self::Cancelled,
                Some(h2::Reason::REFUSED_STREAM) => return Self::Unavailable,
                Some(h2::Reason::ENHANCE_YOUR_CALM) => return Self::ResourceExhausted,
                Some(h2::Reason::INADEQUATE_SECURITY) => return Self::PermissionDenied,
                _ => return Self::Internal,
            }
        }
        Self::Unavailable
    }
}

/// When a client that is refused for want of room may ask again.
const RETRY_AFTER_S: u16 = 1;

/// Why a call is not, or not wholly, answered; a client sees it word for word.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Its code.
    pub code: Code,
    /// What was wrong, for people.
    pub message: String,
    /// What else the replica said with it.
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

impl Refusal {
    /// One of the router's own.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            trailers: None,
        }
    }

    /// There is no room for it now.
    pub(crate) fn busy(message: String) -> Self {
        let mut trailers = HeaderMap::new();
        trailers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        Self {
            trailers: Some(Box::new(trailers)),
            ..Self::new(Code::ResourceExhausted, message)
        }
    }

    /// What the headers at the end of an answer say; None of a success.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let code = match headers.get(GRPC_STATUS) {
            Some(value) => std::str::from_utf8(value.as_bytes())
                .ok()
                .and_then(|number| number.parse().ok())
                .map_or(Code::Unknown, Code::from_number),
            None => Code::Unknown,
        };
        if code == Code::Ok {
            return None;
        }
        let message = match headers.get(GRPC_MESSAGE) {
            Some(value) => percent_decoded(value.as_bytes()),
            None if headers.contains_key(GRPC_STATUS) => String::new(),
            None => "the answer ended without a status".to_owned(),
        };
        Some(Self {
            code,
            message,
            trailers: Some(Box::new(super::metadata::passed(headers))),
        })
    }

    /// What a status of HTTP says that is not 200.
    pub(crate) fn of_http(status: StatusCode) -> Self {
        Self::new(
            Code::from_http(status),
            format!("the replica answered with HTTP status {}", status.as_u16()),
        )
    }

    /// When the replica says it may be asked again.
    pub(crate) fn retry_after_s(&self) -> Option<u16> {
        let said = self.trailers.as_ref()?.get(RETRY_AFTER)?;
        said.to_str().ok()?.parse().ok()
    }

    /// The headers that say it.
    pub(crate) fn into_headers(self) -> HeaderMap {
        let mut headers = self
            .trailers
            .map_or_else(HeaderMap::new, |trailers| *trailers);
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        if !self.message.is_empty() {
            headers.insert(GRPC_MESSAGE, percent_encoded(&self.message));
        }
        headers
    }
}

pub(crate) const GRPC_STATUS: &str = "grpc-status";
pub(crate) const RETRY_AFTER: &str = "retry-after";
pub(crate) const GRPC_MESSAGE: &str = "grpc-message";

/// As gRPC wants a message in a header: what is not printable ASCII, and '%', as %XX.
fn percent_encoded(message: &str) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(message.len());
    for &byte in message.as_bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(byte);
        } else {
            out.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        }
    }
    HeaderValue::from_maybe_shared(Bytes::from(out)).unwrap_or(HeaderValue::from_static("?"))
}

fn percent_decoded(value: &[u8]) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (b'%', [high, low, tail @ ..]) = (first, tail)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
            && let Ok(byte) = u8::try_from(16 * high + low)
        {
            out.push(byte);
            rest = tail;
        } else {
            out.push(*first);
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_way_through_a_header() {
        for message in ["", "plain", "100 % sure\n", "Grüße, 世界", "%zz%4", "%41"] {
            let refusal = Refusal::new(Code::NotFound, message);
            let back = Refusal::of(&refusal.into_headers()).unwrap();
            assert_eq!(
                (back.code, back.message.as_str()),
                (Code::NotFound, message)
            );
        }
    }

    #[test]
    fn no_status_and_no_known_status_are_unknown() {
        assert_eq!(Refusal::of(&HeaderMap::new()).unwrap().code, Code::Unknown);
        for said in ["x", "17", "99999999999999999999", "-1"] {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_STATUS, HeaderValue::from_static(said));
            assert_eq!(Refusal::of(&headers).unwrap().code, Code::Unknown, "{said}");
        }
    }

    #[test]
    fn codes_stand_at_their_numbers() {
        for (number, (code, _)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, number);
        }
    }
}
