//! Arguments that are both read and written: single values, and lists whose capacity the caller passes.

use crate::error::{Error, Result};
use crate::pointer::Out;

/// Pointer to a value that is read and overwritten.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Reads the value; fails for a null pointer.
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees that it points to a `T`; it need not be aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Overwrites the value; fails for a null pointer.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees that a `T` may be written there; it need not be aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn of(place: &mut T) -> Self {
        Self(place)
    }
}

/// Writes the number of rows if all lists are null; otherwise writes as many rows as the caller has room for, fills the
/// rest with `nothing`, and sets the count to the number written.
pub(super) fn write_lists<T: Copy, const LISTS: usize>(
    rows: &[[T; LISTS]],
    outs: [Out<T>; LISTS],
    count: InOut<usize>,
    nothing: T,
) -> Result {
    if outs.iter().all(|out| out.is_null()) {
        return count.put(rows.len());
    }
    let room = count.get()?;
    for at in 0..room {
        let row = rows.get(at).copied().unwrap_or([nothing; LISTS]);
        for (out, value) in outs.iter().zip(row) {
            out.put_at(at, value)?;
        }
    }
    count.put(room.min(rows.len()))
}
