//! Callers' pointers; no other module dereferences them.
//!
//! As C's documentation requires, a pointer is null, or points to as much memory of its type as the function's
//! description demands. Null yields INVALID_ARGUMENT. Alignment is not assumed.
#![allow(
    unsafe_code,
    reason = "callers' memory is accessible only through raw pointers"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;

use crate::answer::{Answer, Return};

/// Pointer to the destination of a value.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

/// A struct whose first four bytes hold its version: its size, with a number above.
pub(crate) trait Versioned: Copy {
    /// Version that the caller must have written.
    const VERSION: u32;
}

impl<T: Copy> Out<T> {
    /// Writes the value; fails for a null pointer.
    pub(crate) fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller guarantees room for a `T`.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Reads the value the caller has written; fails for a null pointer.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller guarantees an initialized `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns whether the caller wants no value.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Reinterprets the pointer, for another type that the caller has declared.
    pub(crate) const fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Versioned> Out<T> {
    /// Fails unless the caller's struct has this version.
    pub(crate) fn check_version(self) -> Answer {
        if self.cast::<u32>().get()? == T::VERSION {
            Ok(())
        } else {
            Err(Return::ARGUMENT_VERSION_MISMATCH)
        }
    }

    /// Writes a struct; fails unless the caller's has the same version.
    pub(crate) fn put_versioned(self, value: T) -> Answer {
        self.check_version()?;
        self.put(value)
    }
}

/// Pointer to an array of values.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Slots<T>(*mut T);

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slots<T> {}

impl<T: Copy> Slots<T> {
    /// Returns whether the caller provides no array.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes all values; the caller guarantees room for them.
    pub(crate) fn put_all(self, values: &[T]) -> Answer {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the caller guarantees room for this many.
            let slot = unsafe { self.0.add(at) };
            // SAFETY: within the caller's array.
            unsafe { slot.write_unaligned(*value) };
        }
        Ok(())
    }

    /// Writes the values if `count` is large enough, and sets `count` to their number; otherwise fails with
    /// INSUFFICIENT_SIZE.
    pub(crate) fn put_counted(self, count: Out<u32>, values: &[T]) -> Answer {
        let room = count.get()?;
        let number = u32::try_from(values.len()).unwrap_or(u32::MAX);
        count.put(number)?;
        if number > room {
            return Err(Return::INSUFFICIENT_SIZE);
        }
        self.put_all(values)
    }

    /// Applies `change` to each of `count` values.
    pub(crate) fn change(self, count: usize, change: impl Fn(&mut T)) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        for at in 0..count {
            // SAFETY: the caller guarantees this many values.
            let slot = unsafe { self.0.add(at) };
            // SAFETY: within the caller's array, and initialized.
            let mut value = unsafe { slot.read_unaligned() };
            change(&mut value);
            // SAFETY: as before.
            unsafe { slot.write_unaligned(value) };
        }
        Ok(())
    }
}

/// Pointer to a buffer for text.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes the text with its terminating zero; fails with INSUFFICIENT_SIZE if it does not fit in `room` bytes.
    pub(crate) fn put(self, room: u32, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        let text = c_string(text);
        let bytes = text.as_bytes_with_nul();
        if bytes.len() > room as usize {
            return Err(Return::INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller guarantees `room` bytes, which suffice; the source is this library's own buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast(), bytes.len()) };
        Ok(())
    }

    /// Writes as much of the text as fits.
    pub(crate) fn put_start(self, room: u32, text: &str) -> Answer {
        let Some(room_text) = room.checked_sub(1) else {
            return Err(Return::INVALID_ARGUMENT);
        };
        let mut end = text.len().min(room_text as usize);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.put(room, &text[..end])
    }
}

/// Pointer to a text of the caller.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    /// Copies the text; fails for a null pointer or text other than UTF-8.
    pub(crate) fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller guarantees a terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        let text = text.to_str().map_err(|_| Return::INVALID_ARGUMENT)?;
        Ok(text.to_owned())
    }
}

/// Converts text to a C string, cut at the first zero.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// Returns the folder that contains this library, by the path from which it was loaded.
pub(crate) fn own_folder() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here: *const c_void = (own_folder as fn() -> Option<PathBuf>) as *const c_void;
    // SAFETY: the address is in this library, and the result is written to a local struct.
    let is_found = unsafe { libc::dladdr(here, &raw mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's string, valid while this library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(path.to_str().ok()?);
    path.parent().map(std::path::Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(room: [c_char; 4]) -> [u8; 4] {
        room.map(|byte| byte.to_ne_bytes()[0])
    }

    #[test]
    fn text_that_does_not_fit_is_not_written() {
        let mut room = [1; 4];
        let out = TextOut(room.as_mut_ptr());
        assert_eq!(out.put(4, "abcd"), Err(Return::INSUFFICIENT_SIZE));
        assert_eq!(room, [1; 4]);
        out.put(4, "abc").unwrap();
        assert_eq!(bytes(room), *b"abc\0");
        out.put_start(3, "öö").unwrap();
        assert_eq!(bytes(room), [0xc3, 0xb6, 0, 0]);
        assert_eq!(out.put_start(0, "a"), Err(Return::INVALID_ARGUMENT));
        let nowhere = TextOut(std::ptr::null_mut());
        assert_eq!(nowhere.put(4, "a"), Err(Return::INVALID_ARGUMENT));
        assert_eq!(
            TextIn(std::ptr::null()).get(),
            Err(Return::INVALID_ARGUMENT)
        );
        assert_eq!(TextIn(c"x".as_ptr()).get().unwrap(), "x");
    }

    #[test]
    fn lists_report_their_length() {
        let mut count = 1;
        let mut values = [0_u64; 3];
        let (counter, slots) = (Out(&raw mut count), Slots(values.as_mut_ptr()));
        assert_eq!(
            slots.put_counted(counter, &[7, 8]),
            Err(Return::INSUFFICIENT_SIZE)
        );
        assert_eq!((counter.get(), values), (Ok(2), [0; 3]));
        slots.put_counted(counter, &[7, 8]).unwrap();
        assert_eq!(values, [7, 8, 0]);
        slots.change(3, |value| *value += 1).unwrap();
        assert_eq!(values, [8, 9, 1]);
        let nowhere = Slots::<u64>(std::ptr::null_mut());
        nowhere.put_counted(counter, &[]).unwrap();
        assert_eq!(counter.get(), Ok(0));
        assert_eq!(nowhere.put_all(&[1]), Err(Return::INVALID_ARGUMENT));
        assert_eq!(
            Out::<u32>(std::ptr::null_mut()).put(1),
            Err(Return::INVALID_ARGUMENT)
        );
    }

    #[test]
    fn the_own_folder_contains_this_test() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(
            own_folder().unwrap().canonicalize().unwrap(),
            own.parent().unwrap()
        );
    }
}
