//! Clients that were turned away at the door, and why.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It does not speak TLS where that is spoken.
    NotTls,
    /// It has to show a certificate.
    NoCertificate,
    /// It showed one that is not trusted, or no longer.
    BadCertificate,
    /// It gave up in the middle of its handshake; most often as it does not trust our certificate.
    Left,
    /// It does not want to speak HTTP/2.
    NoHttp2,
    /// Its handshake was not over in time.
    Slow,
    /// Its handshake broke rules, or there is no common way to encrypt.
    BrokenTls,
    /// What it sent is no HTTP/2, or more of it than is borne: resets, settings, headers without end.
    BrokenHttp2,
    /// It has to bring a token.
    NoToken,
    /// It brought one that does not open what it asked for.
    WrongToken,
}

const REASONS: [(Reason, &str); 10] = [
    (Reason::NotTls, "not_tls"),
    (Reason::NoCertificate, "no_certificate"),
    (Reason::BadCertificate, "bad_certificate"),
    (Reason::Left, "left_handshake"),
    (Reason::NoHttp2, "no_http2"),
    (Reason::Slow, "slow_handshake"),
    (Reason::BrokenTls, "broken_handshake"),
    (Reason::BrokenHttp2, "broken_http2"),
    (Reason::NoToken, "no_token"),
    (Reason::WrongToken, "wrong_token"),
];

/// How often, and who was the last.
type Seen = (u64, Option<IpAddr>);

#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<[Seen; REASONS.len()]>);

impl Strangers {
    pub fn turned_away(&self, reason: Reason, peer: Option<IpAddr>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, last) = &mut seen[reason as usize];
        *times += 1;
        *last = peer;
    }

    /// By the name of the reason; none that has not been.
    pub fn read(&self) -> Vec<(&'static str, u64, String)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |last: &Option<IpAddr>| last.map_or_else(String::new, |last| last.to_string());
        REASONS
            .iter()
            .zip(seen.iter())
            .filter(|(_, (times, _))| *times > 0)
            .map(|((_, name), (times, last))| (*name, *times, told(last)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_numbers() {
        for (number, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
    }
}
