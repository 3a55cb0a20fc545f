//! Arguments of kernels, as programs pass them to launches.

use preload_ops::launch::Arguments;
use preload_state::tensor_maps::{ALIGNMENT, WORDS};

use crate::calls::written;
use crate::context::context;
use crate::driver::{self, Code, Handle};
use crate::pointers::{read, read_words};

/// Returns all words of the arguments of a launch, if they are known, with the address of the tensor in place of each descriptor of one. `is_kernel`: as
/// in [`parameter`].
pub(crate) fn words(function: Handle, is_kernel: bool, arguments: Arguments) -> Option<Vec<u64>> {
    let places = Places::of(arguments)?;
    let mut words = Vec::new();
    for index in 0.. {
        let Ok((offset, bytes)) = parameter(function, is_kernel, index) else {
            // Behind the last one; or the driver does not know, and then not the first one either.
            return (index > 0).then_some(words);
        };
        let own = read_words(places.place(index, offset, bytes)?, bytes);
        // It may be, or contain, descriptors of tensors, whose addresses cannot be read.
        if offset.is_multiple_of(8 * ALIGNMENT) && bytes >= 8 * WORDS {
            words.extend(context().process.tensor_maps.resolve(&own)?);
        } else {
            words.extend(own);
        }
    }
    None
}

/// Returns offset and size of a parameter of a kernel, in bytes. `is_kernel`: the handle is a `CUkernel`, which the driver has validated; otherwise it is a
/// `CUfunction`, which it uses unchecked.
fn parameter(function: Handle, is_kernel: bool, index: usize) -> Result<(usize, usize), Code> {
    let mut offset: usize = 0;
    let place = &raw mut offset;
    let bytes = written(|bytes: *mut usize| {
        if is_kernel {
            // SAFETY: a kernel, and pointers to variables of this stack.
            unsafe { driver::cuKernelGetParamInfo(function, index, place, bytes) }
        } else {
            // SAFETY: as above. The handle is no kernel, so the program, which launches it, guarantees that it is a function.
            unsafe { driver::cuFuncGetParamInfo(function, index, place, bytes) }
        }
    })?;
    Ok((offset, bytes))
}

/// Where the arguments of a launch are.
#[derive(Debug, Clone, Copy)]
enum Places {
    /// Each at the pointer with its number in this list.
    List(*const *const u64),
    /// All in this buffer with a size in bytes, as the kernel has them.
    Buffer(*const u64, usize),
}

impl Places {
    /// Returns where the arguments are; `None` if that is not known.
    fn of(arguments: Arguments) -> Option<Self> {
        match (arguments.list, arguments.extra) {
            (0, 0) => None,
            (list, 0) => Some(Self::List(std::ptr::with_exposed_provenance(list))),
            (0, extra) => Self::of_options(std::ptr::with_exposed_provenance(extra)),
            // The driver refuses the launch.
            _ => None,
        }
    }

    /// Returns the buffer that a list of launch options names.
    fn of_options(options: *const usize) -> Option<Self> {
        /// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER` (each followed by a pointer), `CU_LAUNCH_PARAM_BUFFER_SIZE` (a pointer to a size).
        const END: usize = 0;
        const BUFFER: usize = 1;
        const BYTES: usize = 2;
        let (mut buffer, mut bytes) = (None, None);
        let mut next = options;
        loop {
            let value = next.wrapping_add(1);
            match read(next)? {
                END => break,
                BUFFER => buffer = Some(std::ptr::with_exposed_provenance(read(value)?)),
                BYTES => bytes = read(std::ptr::with_exposed_provenance(read(value)?)),
                // How long the list is then is not known.
                _ => return None,
            }
            next = next.wrapping_add(2);
        }
        Some(Self::Buffer(buffer?, bytes?))
    }

    /// Returns the address of an argument of `bytes` bytes, which is at `offset` among those of the kernel; `None` for one that is not there.
    fn place(self, index: usize, offset: usize, bytes: usize) -> Option<*const u64> {
        match self {
            Self::List(list) => read(list.wrapping_add(index)),
            Self::Buffer(buffer, size) => {
                let is_within = offset.checked_add(bytes).is_some_and(|end| end <= size);
                is_within.then(|| buffer.wrapping_byte_add(offset))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(options: &[usize]) -> Option<(usize, usize)> {
        let extra = options.as_ptr().expose_provenance();
        match Places::of(Arguments { list: 0, extra })? {
            Places::Buffer(buffer, bytes) => Some((buffer.expose_provenance(), bytes)),
            Places::List(_) => None,
        }
    }

    #[test]
    fn a_buffer_of_arguments_is_found_in_the_options_of_a_launch() {
        let bytes: usize = 24;
        let size = (&raw const bytes).expose_provenance();
        assert_eq!(buffer(&[1, 0x1000, 2, size, 0]), Some((0x1000, 24)));
        assert_eq!(buffer(&[2, size, 1, 0x1000, 0]), Some((0x1000, 24)));
        assert_eq!(buffer(&[1, 0x1000, 0]), None, "without a size");
        assert_eq!(buffer(&[2, size, 0]), None, "without a buffer");
        assert_eq!(buffer(&[2, 0, 1, 0x1000, 0]), None, "nowhere");
        assert_eq!(buffer(&[1, 0x1000, 7]), None, "an unknown option");
        assert_eq!(buffer(&[0]), None);
    }

    #[test]
    fn an_argument_is_where_its_kernel_has_it() {
        let values: [u64; 3] = [5, 6, 7];
        let of = |list: usize, extra| Places::of(Arguments { list, extra });
        let pointers = values.each_ref().map(|value| &raw const *value);
        let list = of(pointers.as_ptr().expose_provenance(), 0).unwrap();
        assert_eq!(list.place(2, 40, 8).and_then(read), Some(7));
        let buffer = Places::Buffer(values.as_ptr(), 24);
        assert_eq!(buffer.place(9, 16, 8).and_then(read), Some(7));
        assert_eq!(buffer.place(9, 16, 9), None, "beyond the buffer");
        assert_eq!(buffer.place(9, usize::MAX, 8), None);
        assert!(of(0, 0).is_none());
        assert!(of(1, 1).is_none(), "the driver refuses both");
    }
}
