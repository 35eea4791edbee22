//! Bounds of what a call may bring; those that `proto/limits.py` knows too are the same there.

use std::time::Duration;

/// Of any message.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Of a prompt that comes as token ids.
pub(crate) const MAX_PROMPT_TOKENS: usize = 1 << 20;

/// Of a text, or of a chat's roles and contents together.
pub(crate) const MAX_TEXT_CHARACTERS: usize = 1 << 20;

/// Of a chat.
pub(crate) const MAX_CHAT_MESSAGES: usize = 1 << 14;

/// Of a prompt.
pub(crate) const MAX_MEDIA_ITEMS: usize = 1024;

/// Of model, `extra_key` and `cache_salt` each.
pub(crate) const MAX_NAME_CHARACTERS: usize = 1024;

/// Of a `request_id`; the rest is cut off.
pub(crate) const MAX_REQUEST_ID_CHARACTERS: usize = 128;

/// Of what a caller sends along, each entry counted as HTTP/2 does.
pub(crate) const MAX_METADATA_BYTES: usize = 8 << 10;

/// HTTP/2's surcharge for each entry (RFC 9113, 6.5.2).
pub(crate) const METADATA_ENTRY_BYTES: usize = 32;

/// Of all headers of a call.
pub(crate) const MAX_HEADER_BYTES: usize = 2 * MAX_METADATA_BYTES;

/// Of headers that are looked at: who sends more than the bound is told so, who sends more than this is refused
/// by HTTP/2 itself.
pub(crate) const MAX_HEADER_LIST_BYTES: u32 = 64 << 10;

/// From the begin of a call to the end of its message; enough for the largest on a slow line.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// For a client's first bytes, and for the answer of a replica to a connection attempt.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that brings nothing for this long is asked for a sign of life.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(5);

/// Without one after this long, the connection and its calls end.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection without a call for this long is told to leave, as is one that never had any.
pub(crate) const REST_TIMEOUT: Duration = Duration::from_secs(600);

/// Who is told to leave and has no call does so within this.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls of one client connection at a time.
pub(crate) const MAX_CONNECTION_STREAMS: u32 = 4096;

/// Of them those that are given up before the router has looked at them; more end the connection (CVE-2023-44487). As
/// many come in one read when a gateway loses a busy client of its own.
pub(crate) const MAX_UNSEEN_RESETS: usize = 256;

/// What may be on its way of one request, and of all of a connection.
pub(crate) const REQUEST_WINDOW_BYTES: u32 = 1 << 20;
pub(crate) const REQUESTS_WINDOW_BYTES: u32 = 16 << 20;

/// What a replica may send of one answer before its client reads on. Small, so that what slow readers leave
/// lying here stays small; the window of all of a connection is never what stops one of them.
pub(crate) const ANSWER_WINDOW_BYTES: u32 = 64 << 10;
pub(crate) const ANSWERS_WINDOW_BYTES: u32 = 1 << 30;

/// Streams that were given up here, remembered for so long: what the peer still sends of them is passed over.
pub(crate) const RESETS_KEPT: usize = 4096;
pub(crate) const RESET_KEPT: Duration = Duration::from_secs(10);
