//! The pointers that callers hand over. That they point where the driver API says they must is the caller's duty, as with
//! the real library; null pointers are told from others here.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::error::{Error, Result};

/// Where a result goes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes it.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller says that a `T` may be written there; it need not be aligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes it where the caller wants it.
    pub(crate) fn put_if_wanted(self, value: T) {
        let _wanted = self.put(value);
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the value at a place of an array.
    pub(crate) fn put_at(self, at: usize, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        Self(self.0.wrapping_add(at)).put(value)
    }

    /// As bytes at a distance, for structures whose tail depends on the caller's version.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Where an argument lies.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads it.
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller says that a `T` lies there; it need not be aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads as many as there are.
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

/// A text that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Reads it.
    pub(crate) fn get(self) -> Result<CString> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller says that it ends.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_owned())
    }

    /// Reads it as UTF-8.
    pub(crate) fn string(self) -> Result<String> {
        self.get()?.into_string().map_err(|_| Error::INVALID_VALUE)
    }
}

/// An address as a pointer. This library is for machines of 64 bits: an address of either kind is one of the other.
pub(crate) const fn place<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(size(address))
}

/// A number of bytes as the system takes it, on machines of 64 bits.
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

/// Where a text goes, and how many bytes there are for it.
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

/// Bytes at an address, copied.
pub(crate) fn bytes_at(address: *const c_void, bytes: usize) -> Result<Vec<u8>> {
    if address.is_null() && bytes > 0 {
        return Err(Error::INVALID_VALUE);
    }
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut copy = vec![0; bytes];
    // SAFETY: the caller says that as many bytes lie there; the copy is new.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), copy.as_mut_ptr(), bytes) };
    Ok(copy)
}
