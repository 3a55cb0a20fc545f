//! The functions of the CUDA driver API that the preload library may intercept, and the interface between its two files.
//!
//! `functions.txt` is the only declaration of a function, its class and its parameters. The exported symbols, the results of
//! look-ups and the expectations of the tests are all derived from it and therefore agree.
//!
//! A look-up in the table allocates nothing, takes no lock and does not panic: it happens inside `dlsym`, which programs call
//! before `main`, under the loader's lock and from allocators.
//!
//! Deliberately absent: wrappers, which are the core's. Start reading in `functions.txt`.
#![forbid(unsafe_code)]

pub mod abi;
mod nvml;

use std::ffi::CStr;

pub use nvml::{NVML, nvml};

/// Effect of a driver call on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Starts work on the SMs: kernels, cooperative ones included, and graphs.
    Launch,
    /// Uses memory and starts no kernel: copies, sets, uploads of graphs, prefetches, batches of memory operations.
    Touch,
    /// Allocates, frees, maps or shares memory, in pools and as address ranges as well.
    Alloc,
    /// Waits for work to finish or queries its completion.
    Sync,
    /// Reports properties of memory or of a device.
    Info,
    /// Any other function of the driver API.
    Other,
}

/// Kind of a parameter, as far as a wrapper has to know it to pass it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// Pointer to host memory, to a result, or to a function.
    Pointer,
    /// Integer of 32 bits, an enumeration or a device.
    U32,
    /// Integer of 64 bits which is not a size in bytes, or a handle of that type.
    U64,
    /// Size of memory in bytes, as an integer of 64 bits.
    Bytes,
    /// Size of memory in bytes, as an integer of 32 bits (functions from before CUDA 3.2).
    Bytes32,
    /// Address in device memory, 64 bits wide.
    Address,
    /// Address in device memory, 32 bits wide.
    Address32,
    /// Integer of 16 bits.
    U16,
    /// Integer of 8 bits.
    U8,
    /// Floating-point number of 32 bits.
    F32,
    /// Stream handle, a `CUstream`.
    Stream,
    /// Function or kernel handle, a `CUfunction` or `CUkernel`.
    Function,
    /// Executable graph handle, a `CUgraphExec`.
    GraphExec,
    /// Graph handle, a `CUgraph`.
    Graph,
    /// Event handle, a `CUevent`.
    Event,
    /// Context handle, a `CUcontext`.
    Context,
    /// Handle of another type, of a pointer's size.
    Handle,
    /// Structure of 8 bytes, passed by value like an integer.
    Structure8,
    /// Larger structure, passed by value on the stack.
    Structure,
}

impl Parameter {
    const fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter {
            b'p' => Self::Pointer,
            b'i' => Self::U32,
            b'l' => Self::U64,
            b'n' => Self::Bytes,
            b'm' => Self::Bytes32,
            b'd' => Self::Address,
            b'a' => Self::Address32,
            b'w' => Self::U16,
            b'b' => Self::U8,
            b'r' => Self::F32,
            b's' => Self::Stream,
            b'f' => Self::Function,
            b'x' => Self::GraphExec,
            b'g' => Self::Graph,
            b'e' => Self::Event,
            b'c' => Self::Context,
            b'h' => Self::Handle,
            b'q' => Self::Structure8,
            b't' => Self::Structure,
            _ => return None,
        })
    }
}

/// Function of the driver: one symbol of its ELF file.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Offset of the symbol in `TEXT`, in bytes; a zero byte and the signature follow.
    at: u16,
    symbol: u8,
    /// Length of the name, which is a prefix of the symbol.
    name: u8,
    signature: u8,
    version: u16,
    class: Class,
    is_per_thread: bool,
    is_hooked: bool,
    is_32_bit: bool,
}

include!(concat!(env!("OUT_DIR"), "/entries.rs"));

impl Entry {
    /// Returns the symbol in the driver's file, by which `dlsym` finds it.
    pub fn symbol(&self) -> &'static str {
        let at = usize::from(self.at);
        TEXT.get(at..at + usize::from(self.symbol))
            .unwrap_or_default()
    }

    /// Returns the symbol as a C string.
    pub fn symbol_c(&self) -> &'static CStr {
        let at = usize::from(self.at);
        let bytes = TEXT.as_bytes();
        let bytes = bytes.get(at..=at + usize::from(self.symbol));
        CStr::from_bytes_with_nul(bytes.unwrap_or_default()).unwrap_or_default()
    }

    /// Returns the name by which `cuGetProcAddress` finds it, and by which it is documented.
    pub fn name(&self) -> &'static str {
        let at = usize::from(self.at);
        TEXT.get(at..at + usize::from(self.name))
            .unwrap_or_default()
    }

    /// Returns one letter per parameter, as described in `functions.txt`.
    pub fn signature(&self) -> &'static str {
        let at = usize::from(self.at) + usize::from(self.symbol) + 1;
        TEXT.get(at..at + usize::from(self.signature))
            .unwrap_or_default()
    }

    /// Returns the parameters in their order.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter> + use<> {
        self.signature().bytes().filter_map(Parameter::from_letter)
    }

    /// Returns the index, counted from 0, of the first parameter of this kind; `None` if there is none.
    pub fn position(&self, parameter: Parameter) -> Option<usize> {
        self.parameters().position(|one| one == parameter)
    }

    /// Returns the index of the stream parameter. `None` for launches with a configuration structure, which contains the stream,
    /// and for functions without one: a launch then uses stream 0.
    pub fn stream(&self) -> Option<usize> {
        self.position(Parameter::Stream)
    }

    /// Returns the index of the function or kernel parameter.
    pub fn function(&self) -> Option<usize> {
        self.position(Parameter::Function)
    }

    /// Returns the index of the executable graph parameter.
    pub fn graph_exec(&self) -> Option<usize> {
        self.position(Parameter::GraphExec)
    }

    /// Returns the index of the parameter with a size in bytes, of 64 or 32 bits.
    pub fn bytes(&self) -> Option<usize> {
        self.position(Parameter::Bytes)
            .or_else(|| self.position(Parameter::Bytes32))
    }

    /// Returns the CUDA version that introduced this variant, as 1000 × major + 10 × minor.
    pub const fn version(&self) -> u32 {
        self.version as u32
    }

    /// Returns the effect of a call on the GPU.
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Returns whether stream 0 means the calling thread's own default stream.
    pub const fn is_per_thread(&self) -> bool {
        self.is_per_thread
    }

    /// Returns whether the preload library intercepts the function, and therefore exports its symbol.
    pub const fn is_hooked(&self) -> bool {
        self.is_hooked
    }

    /// Returns whether the function is from before CUDA 3.2, with sizes and device addresses of 32 bits. Later versions use its
    /// symbol as the name of another function.
    pub const fn is_32_bit(&self) -> bool {
        self.is_32_bit
    }
}

/// Returns the index of a symbol in [`ENTRIES`]; `None` if the table lacks it.
pub fn index(symbol: &[u8]) -> Option<usize> {
    ENTRIES
        .binary_search_by(|entry| entry.symbol().as_bytes().cmp(symbol))
        .ok()
}

/// Returns the function with this symbol in the driver's file; `None` if the table lacks it.
pub fn entry(symbol: &[u8]) -> Option<&'static Entry> {
    ENTRIES.get(index(symbol)?)
}

/// Reason for which a name resolves to no function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// The driver has no function of this name in any version.
    NotFound,
    /// The driver has a function of this name, but only in a version later than the program's, or only for per-thread streams,
    /// which were not requested.
    VersionNotSufficient,
}

/// Resolves a name as a driver with all functions of this table does: to the newest variant which a program of this version
/// knows, and for per-thread streams to the legacy variant where there is no other.
///
/// Drivers resolve names themselves; this function is a reference to check their results against.
///
/// # Errors
///
/// Returns [`Unresolved::NotFound`] if no entry has the name, and [`Unresolved::VersionNotSufficient`] if entries have it, but
/// none for this version and kind of stream.
pub fn resolve(
    name: &[u8],
    version: u32,
    is_per_thread: bool,
) -> Result<&'static Entry, Unresolved> {
    let begin = ENTRIES.partition_point(|entry| entry.symbol().as_bytes() < name);
    let mut found: Option<&'static Entry> = None;
    let mut error = Unresolved::NotFound;
    // Every symbol begins with its name, so all candidates are in one range, perhaps among others.
    let stretch = ENTRIES.iter().skip(begin);
    let stretch = stretch.take_while(|entry| entry.symbol().as_bytes().starts_with(name));
    for entry in stretch.filter(|entry| entry.name().as_bytes() == name) {
        if entry.version() > version || (entry.is_per_thread && !is_per_thread) {
            error = Unresolved::VersionNotSufficient;
            continue;
        }
        let rank = |entry: &Entry| (entry.is_per_thread, entry.version);
        if found.is_none_or(|other| rank(entry) > rank(other)) {
            found = Some(entry);
        }
    }
    found.ok_or(error)
}
