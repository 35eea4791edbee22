//! Python buffers as slices, without copies.

use std::cell::Cell;
use std::ptr::NonNull;

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;

/// An element type and the name its errors use.
pub(super) trait Named: Element {
    const NAME: &'static str;
}

impl Named for u32 {
    const NAME: &'static str = "u32";
}

impl Named for i32 {
    const NAME: &'static str = "i32";
}

/// Prefixes of formats whose bytes are in the other order; pyo3 does not look at the order.
const SWAPPED: &[u8] = if cfg!(target_endian = "little") {
    b">!"
} else {
    b"<"
};

/// A one-dimensional C-contiguous buffer of `T`, held for the length of a call; `None` if it has no items, for
/// then it need not have an address.
pub(super) struct Items<T: Named>(Option<PyBuffer<T>>);

impl<T: Named> Items<T> {
    /// # Errors
    /// A message with the argument's `name`, what it should be and what it is.
    pub fn get(name: &str, object: &Bound<'_, PyAny>) -> Result<Self, String> {
        let expected = format_args!("{name}: expected a C-contiguous buffer of {}", T::NAME);
        let buffer = PyUntypedBuffer::get(object)
            .map_err(|error| format!("{expected}, got {}: {error}", object.get_type()))?;
        if buffer.dimensions() != 1 {
            let shape = buffer.shape();
            return Err(format!("{expected} of shape [n], got shape {shape:?}"));
        }
        let format = buffer.format();
        if buffer.item_size() != size_of::<T>()
            || !T::is_compatible_format(format)
            || SWAPPED
                .iter()
                .any(|order| format.to_bytes().starts_with(&[*order]))
        {
            let format = format.to_string_lossy();
            return Err(format!("{expected}, got items of format '{format}'"));
        }
        if !buffer.is_c_contiguous() {
            let strides = buffer.strides();
            return Err(format!("{expected}, got strides {strides:?}"));
        }
        if buffer.len_bytes() == 0 {
            return Ok(Self(None));
        }
        match buffer.into_typed() {
            Ok(buffer) => Ok(Self(Some(buffer))),
            Err(_) => Err(format!("{expected}, got one that is not aligned")),
        }
    }

    /// As `get`, for a buffer to be written to.
    ///
    /// # Errors
    /// As `get`, and on a read-only buffer.
    pub fn get_writable(name: &str, object: &Bound<'_, PyAny>) -> Result<Self, String> {
        let items = Self::get(name, object)?;
        if items.0.as_ref().is_some_and(|buffer| buffer.readonly()) {
            return Err(format!(
                "{name}: expected a writable buffer, got a read-only one"
            ));
        }
        Ok(items)
    }

    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |buffer| buffer.item_count())
    }

    /// Hand the items to `f`, which, being `Send`, holds no proof of the GIL and so runs no Python.
    pub fn read<R>(&self, py: Python<'_>, f: impl FnOnce(&[T]) -> R + Send) -> R {
        f(self.slice(py))
    }

    /// `read` of two buffers at once.
    pub fn read_with<U: Named, R>(
        &self,
        other: &Items<U>,
        py: Python<'_>,
        f: impl FnOnce(&[T], &[U]) -> R + Send,
    ) -> R {
        f(self.slice(py), other.slice(py))
    }

    /// To be held only while no Python runs.
    #[expect(unsafe_code, reason = "pyo3 gives no safe view of a buffer")]
    fn slice<'a>(&'a self, _py: Python<'a>) -> &'a [T] {
        let Some(items) = self.address() else {
            return &[];
        };
        // SAFETY: the exporter keeps the memory in place and its size fixed while the buffer is held; type,
        // alignment and contiguity were checked by `get`. No Python code writes to it meanwhile: this thread
        // holds the GIL, and `read` and `read_with` lend the slice to code that does not run any. (Native
        // code that writes without the GIL to what it lent out races with every reader of the buffer
        // protocol; not with this one alone.)
        unsafe { items.as_ref() }
    }

    /// The items of a writable buffer. Cells, since another buffer may share the memory.
    #[expect(unsafe_code, reason = "pyo3 gives no safe view of a buffer")]
    pub fn write<R>(&self, _py: Python<'_>, f: impl FnOnce(&[Cell<T>]) -> R) -> R {
        let Some(items) = self.address() else {
            return f(&[]);
        };
        // SAFETY: as in `read`; `Cell<T>` has the layout of `T`, allows other cells at the same place, and
        // cannot leave this thread, which holds the GIL. `get_writable` has seen that it may be written.
        f(unsafe { &*(items.as_ptr() as *const [Cell<T>]) })
    }

    fn address(&self) -> Option<NonNull<[T]>> {
        self.0.as_ref()?.as_slice_ptr()
    }
}
