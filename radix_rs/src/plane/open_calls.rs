//! How many calls are open, whatever comes of them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::status::{Code, Refusal};

#[derive(Debug, Default)]
pub(crate) struct OpenCalls(AtomicUsize);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenCall<'a>(&'a OpenCalls);

impl OpenCalls {
    /// One more, unless there are as many as may be.
    pub fn open(&self, most: usize) -> Result<OpenCall<'_>, Refusal> {
        let call = OpenCall(self);
        if self.0.fetch_add(1, SeqCst) < most {
            return Ok(call);
        }
        let message = "more calls are open than this router takes";
        Err(Refusal::new(Code::ResourceExhausted, message))
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}
