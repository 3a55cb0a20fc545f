//! Arguments of two directions: values that are read and then overwritten, and lists for which the caller says how much
//! room there is.

use crate::error::{Error, Result};
use crate::pointer::Out;

/// A value that is read and overwritten.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Reads it.
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller says that a `T` lies there; it need not be aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Overwrites it.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller says that a `T` may be written there; it need not be aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn of(place: &mut T) -> Self {
        Self(place)
    }
}

/// How many there are, or, with somewhere to write them, as many as there is room for: places that remain are filled with
/// `nothing`, and the count becomes the number of those written.
pub(super) fn give<T: Copy, const LISTS: usize>(
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
