//! Pointers passed by callers. Their validity is the caller's responsibility, as with the real library; only null
//! pointers are detected here.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::error::{Error, Result};

/// Pointer to the destination of a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; fails for a null pointer.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees that a `T` may be written there; it need not be aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn put_if_wanted(self, value: T) {
        let _wanted = self.put(value);
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns whether the address is a multiple of `bytes`.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        self.0.addr().is_multiple_of(bytes)
    }

    /// Writes the value at an index of an array.
    pub(crate) fn put_at(self, at: usize, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        Self(self.0.wrapping_add(at)).put(value)
    }

    /// Reinterprets the destination, for results whose type depends on an argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Pointer to an argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; fails for a null pointer.
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees that it points to a `T`; it need not be aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values; fails for a null pointer unless there are none.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>> {
        (0..count)
            .map(|at| {
                if self.0.is_null() {
                    return Err(Error::INVALID_VALUE);
                }
                Self(self.0.wrapping_add(at)).get()
            })
            .collect()
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) const fn from_raw(at: *const T) -> Self {
        Self(at)
    }
}

/// Pointer to a text with a terminating zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Copies the text; fails for a null pointer.
    pub(crate) fn get(self) -> Result<CString> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees the terminating zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_owned())
    }

    /// Copies the text; fails unless it is UTF-8.
    pub(crate) fn string(self) -> Result<String> {
        self.get()?.into_string().map_err(|_| Error::INVALID_VALUE)
    }
}

/// Converts an address to a pointer. Device and host addresses both have 64 bits.
pub(crate) const fn as_pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(size(address))
}

/// Converts a number of bytes to `usize`, on machines of 64 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "64 bits on both sides, as the next line says"
)]
pub(crate) const fn size(bytes: u64) -> usize {
    const {
        assert!(
            size_of::<usize>() == size_of::<u64>(),
            "for machines of 64 bits"
        )
    };
    bytes as usize
}

/// Writes a text of at most `bytes` bytes with its terminating zero, truncated if necessary.
pub(crate) fn put_text(to: Out<c_char>, bytes: i32, text: &str) -> Result {
    let room = usize::try_from(bytes).unwrap_or_default();
    if to.is_null() || room == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let shown = text.len().min(room - 1);
    for (at, byte) in text.bytes().take(shown).chain([0]).enumerate() {
        to.put_at(at, byte.cast_signed())?;
    }
    Ok(())
}

/// Copies bytes from an address.
pub(crate) fn bytes_at(address: *const c_void, bytes: usize) -> Result<Vec<u8>> {
    if address.is_null() && bytes > 0 {
        return Err(Error::INVALID_VALUE);
    }
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut copy = vec![0; bytes];
    // SAFETY: the caller guarantees this many bytes at the address; the copy is new.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), copy.as_mut_ptr(), bytes) };
    Ok(copy)
}
