//! Pointers of the program.
//!
//! A pointer is read and written only as the function of the driver or of NVML with the wrapper's name reads and writes it. The program
//! guarantees to that function, and thereby to its wrapper, that the pointer is null or valid for it, aligned or not. No reference is
//! made from it, so other threads of the program may use the memory as far as they may beside the function itself.

/// Writes a result to the program's memory. Does nothing if the pointer is null.
pub(crate) fn write_out<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the program guarantees that the wrapped function may write a `T` there; that function has returned, or is
        // not called.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a structure of the program's, or a result that the wrapped function has written; `None` if the pointer is null.
pub(crate) fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: not null, and the program guarantees that the wrapped function may read a `T` there, or that function has written one.
    (!from.is_null()).then(|| unsafe { from.read_unaligned() })
}
