//! What a call's metadata means: what passes through, and what only a router says.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::limits::METADATA_ENTRY_BYTES;

/// Only a router says these; from a client or replica they are dropped.
const CONTROL: &str = "prefixlb-";

/// Between neighbours; each hop says its own.
const HOP: &str = "grpc-";
const HOP_KEYS: [&str; 14] = [
    "user-agent",
    "content-type",
    "te",
    "host",
    "connection",
    "accept-encoding",
    "date",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    // What opens this router is for nobody else.
    "authorization",
    "proxy-authorization",
];

fn passes(name: &HeaderName) -> bool {
    let name = name.as_str();
    !(name.starts_with(CONTROL) || name.starts_with(HOP) || HOP_KEYS.contains(&name))
}

/// What an intermediary hands on of a caller's or a replica's metadata.
pub(crate) fn passed(headers: &HeaderMap) -> HeaderMap {
    let mut out = HeaderMap::new();
    pass_into(headers, &mut out);
    out
}

/// The same, beside what is there.
pub(crate) fn pass_into(headers: &HeaderMap, out: &mut HeaderMap) {
    for (name, value) in headers {
        if passes(name) {
            out.append(name.clone(), value.clone());
        }
    }
}

/// What counts against the bound of a caller's metadata: binary values as what they encode.
pub(crate) fn size_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .filter(|(name, _)| passes(name))
        .map(|(name, value)| name.as_str().len() + value_bytes(name, value) + METADATA_ENTRY_BYTES)
        .sum()
}

fn value_bytes(name: &HeaderName, value: &HeaderValue) -> usize {
    if name.as_str().ends_with("-bin") {
        let digits = value.as_bytes().iter().filter(|byte| **byte != b'=');
        digits.count() * 3 / 4
    } else {
        value.len()
    }
}

/// What counts against the bound of all headers.
pub(crate) fn whole_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + METADATA_ENTRY_BYTES)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_hop_headers_do_not_pass_and_the_rest_does_in_order() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-a", "1"),
            ("prefixlb-replica", "evil"),
            ("grpc-timeout", "1S"),
            ("te", "trailers"),
            ("content-length", "7"),
            ("authorization", "Bearer secret"),
            ("x-a", "2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let passed = passed(&headers);
        assert_eq!(passed.len(), 2);
        assert!(passed.get_all("x-a").iter().eq(["1", "2"]));
        assert_eq!(size_bytes(&headers), 2 * (3 + 1 + 32));
    }

    #[test]
    fn a_binary_value_counts_as_what_it_encodes() {
        let mut headers = HeaderMap::new();
        headers.insert("x-bin", HeaderValue::from_static("AAECAw=="));
        assert_eq!(size_bytes(&headers), 5 + 4 + 32);
    }
}
