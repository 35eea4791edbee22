//! Bearer tokens (RFC 6750): who may call what.

use std::hint::black_box;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use super::status::{Code, Refusal};
use super::strangers::Reason;

/// Probes have no token.
const HEALTH: &str = "/grpc.health.v1.Health/";
const ADMIN: &str = "/prefixlb.v1.Admin/";
const SCHEME: &str = "bearer ";

/// Hashes, so that what a comparison takes says nothing of a token.
type Hashes = Arc<[[u8; 32]]>;

/// None: no token is needed.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// These open all but the admin service, and that too if it has none of its own.
    callers: RwLock<Option<Hashes>>,
    /// These open all.
    admins: RwLock<Option<Hashes>>,
}

impl Tokens {
    /// From now on calls need one of these.
    pub fn set_callers(&self, tokens: &[Vec<u8>]) {
        set(&self.callers, tokens);
    }

    /// From now on calls of the admin service need one of these.
    pub fn set_admins(&self, tokens: &[Vec<u8>]) {
        set(&self.admins, tokens);
    }

    /// Why a call may not be made; None: it may.
    pub fn objection(&self, path: &str, headers: &HeaderMap) -> Option<(Reason, Refusal)> {
        let (callers, admins) = (get(&self.callers), get(&self.admins));
        let is_open = if path.starts_with(ADMIN) {
            callers.is_none() && admins.is_none()
        } else {
            callers.is_none()
        };
        if is_open || path.starts_with(HEALTH) {
            return None;
        }
        let Some(token) = token(headers) else {
            let message = "a token is needed here: send the metadata 'authorization: Bearer TOKEN'";
            let refusal = Refusal::new(Code::Unauthenticated, message);
            return Some((Reason::NoToken, refusal));
        };
        let hash = hash(token);
        let is_caller = has(callers.as_ref(), &hash);
        if has(admins.as_ref(), &hash)
            || (is_caller && (admins.is_none() || !path.starts_with(ADMIN)))
        {
            return None;
        }
        let refusal = if is_caller {
            let message = "the token does not open the admin service, which has its own";
            Refusal::new(Code::PermissionDenied, message)
        } else {
            Refusal::new(Code::Unauthenticated, "the token is none of this router's")
        };
        Some((Reason::WrongToken, refusal))
    }
}

fn token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME.as_bytes())
        .then(|| token.trim_ascii())
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Looks at all of them, wholly.
fn has(hashes: Option<&Hashes>, wanted: &[u8; 32]) -> bool {
    hashes.is_some_and(|hashes| {
        hashes.iter().fold(false, |found, each| {
            let differing = each
                .iter()
                .zip(wanted)
                .fold(0, |bits, (a, b)| bits | (a ^ b));
            found | (black_box(differing) == 0)
        })
    })
}

fn set(place: &RwLock<Option<Hashes>>, tokens: &[Vec<u8>]) {
    let hashes = tokens.iter().map(|token| hash(token)).collect();
    *place.write().unwrap_or_else(PoisonError::into_inner) = Some(hashes);
}

fn get(place: &RwLock<Option<Hashes>>) -> Option<Hashes> {
    let hashes = place.read().unwrap_or_else(PoisonError::into_inner);
    hashes.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATE: &str = "/prefixlb.v1.Inference/Generate";
    const LIST: &str = "/prefixlb.v1.Admin/ListReplicas";

    fn said(tokens: &Tokens, path: &str, authorization: Option<&str>) -> Code {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        tokens
            .objection(path, &headers)
            .map_or(Code::Ok, |(_, refusal)| refusal.code)
    }

    #[test]
    fn a_call_needs_a_token_once_there_are_any_and_a_probe_never() {
        let tokens = Tokens::default();
        assert_eq!(said(&tokens, GENERATE, None), Code::Ok);
        tokens.set_callers(&[b"one".to_vec(), b"two".to_vec()]);
        for (authorization, code) in [
            (Some("Bearer two"), Code::Ok),
            (Some("bearer  one "), Code::Ok),
            (Some("Bearer three"), Code::Unauthenticated),
            (Some("Bearer "), Code::Unauthenticated),
            (Some("Basic b25l"), Code::Unauthenticated),
            (Some("one"), Code::Unauthenticated),
            (None, Code::Unauthenticated),
        ] {
            for path in [
                GENERATE,
                LIST,
                "/grpc.reflection.v1alpha.ServerReflection/Info",
            ] {
                assert_eq!(
                    said(&tokens, path, authorization),
                    code,
                    "{authorization:?} {path}"
                );
            }
            assert_eq!(
                said(&tokens, "/grpc.health.v1.Health/Check", authorization),
                Code::Ok
            );
        }
        tokens.set_callers(&[]);
        assert_eq!(
            said(&tokens, GENERATE, Some("Bearer one")),
            Code::Unauthenticated
        );
    }

    #[test]
    fn an_admin_opens_all_and_nobody_else_the_admin_service() {
        let tokens = Tokens::default();
        tokens.set_admins(&[b"boss".to_vec()]);
        assert_eq!(said(&tokens, GENERATE, None), Code::Ok);
        assert_eq!(said(&tokens, LIST, None), Code::Unauthenticated);
        tokens.set_callers(&[b"one".to_vec()]);
        for (path, authorization, code) in [
            (LIST, "Bearer boss", Code::Ok),
            (GENERATE, "Bearer boss", Code::Ok),
            (GENERATE, "Bearer one", Code::Ok),
            (LIST, "Bearer one", Code::PermissionDenied),
            (LIST, "Bearer none", Code::Unauthenticated),
        ] {
            assert_eq!(
                said(&tokens, path, Some(authorization)),
                code,
                "{authorization} {path}"
            );
        }
    }
}
