//! Callers' pointers: the only place where they are followed.
//!
//! What C says of each holds here: a pointer is null, or leads to as much memory of its type as the function's description
//! asks for. Null is answered with INVALID_ARGUMENT. Nothing is assumed to be aligned.
#![allow(
    unsafe_code,
    reason = "what callers point to can be had in no other way"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;

use crate::answer::{Answer, Return};

/// Where a caller wants a value.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

/// A struct that says its own version in its first four bytes: its size, and above it a number.
pub(crate) trait Versioned: Copy {
    /// What a caller has to have written there.
    const VERSION: u32;
}

impl<T: Copy> Out<T> {
    /// Puts the value there.
    pub(crate) fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, so the caller has a T there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// What the caller has put there.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, so the caller has a T there, and has written it, as all that is read is to be.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Nothing is wanted.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place, for a value of another type, which the caller has said to be there.
    pub(crate) const fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Versioned> Out<T> {
    /// The struct there is of this version.
    pub(crate) fn check_version(self) -> Answer {
        if self.cast::<u32>().get()? == T::VERSION {
            Ok(())
        } else {
            Err(Return::ARGUMENT_VERSION_MISMATCH)
        }
    }

    /// Puts a struct where one of its version is wanted.
    pub(crate) fn put_versioned(self, value: T) -> Answer {
        self.check_version()?;
        self.put(value)
    }
}

/// Where a caller wants several values.
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
    /// There is no place for any.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Puts all of them there: the caller has room for as many as there can be.
    pub(crate) fn put_all(self, values: &[T]) -> Answer {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the caller has room for so many.
            let slot = unsafe { self.0.add(at) };
            // SAFETY: it lies within the caller's array.
            unsafe { slot.write_unaligned(*value) };
        }
        Ok(())
    }

    /// Puts them there as far as there is room, which `count` says; `count` becomes how many there are.
    pub(crate) fn put_counted(self, count: Out<u32>, values: &[T]) -> Answer {
        let room = count.get()?;
        let number = u32::try_from(values.len()).unwrap_or(u32::MAX);
        count.put(number)?;
        if number > room {
            return Err(Return::INSUFFICIENT_SIZE);
        }
        self.put_all(values)
    }

    /// Changes each of `count` values.
    pub(crate) fn change(self, count: usize, change: impl Fn(&mut T)) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        for at in 0..count {
            // SAFETY: the caller has so many there.
            let slot = unsafe { self.0.add(at) };
            // SAFETY: it lies within the caller's array, and is written.
            let mut value = unsafe { slot.read_unaligned() };
            change(&mut value);
            // SAFETY: as before.
            unsafe { slot.write_unaligned(value) };
        }
        Ok(())
    }
}

/// Where a caller wants text.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// Puts it there, if there is room for all of it and the byte that ends it.
    pub(crate) fn put(self, room: u32, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        let text = c_string(text);
        let bytes = text.as_bytes_with_nul();
        if bytes.len() > room as usize {
            return Err(Return::INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller has `room` bytes there, and these are not more; what is ours is not the caller's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast(), bytes.len()) };
        Ok(())
    }

    /// Puts there as much of it as there is room for.
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

/// Text of a caller.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    /// What it says.
    pub(crate) fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, so the caller has a string there, which ends.
        let text = unsafe { CStr::from_ptr(self.0) };
        let text = text.to_str().map_err(|_| Return::INVALID_ARGUMENT)?;
        Ok(text.to_owned())
    }
}

/// For C: what follows a zero is left out.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// The folder in which this library lies, by the path by which it was loaded.
pub(crate) fn own_folder() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here: *const c_void = (own_folder as fn() -> Option<PathBuf>) as *const c_void;
    // SAFETY: the address lies in this library, and what is found goes into a struct of ours.
    let is_found = unsafe { libc::dladdr(here, &raw mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: it is the loader's string, which stays as long as this library is loaded.
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
    fn nothing_is_put_where_there_is_no_room() {
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
    fn lists_say_how_many_there_are() {
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
    fn this_test_lies_in_its_folder() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(
            own_folder().unwrap().canonicalize().unwrap(),
            own.parent().unwrap()
        );
    }
}
