//! The functions of the CUDA driver API that a preload library may meet, and the interface between its two files.
//!
//! `functions.txt` is the one place in which a function, its class and its parameters are declared. What the library exports,
//! what it answers to a look-up and what its tests allow all come from there, so that they cannot drift apart.
//!
//! Looking something up allocates nothing, takes no lock and does not panic: it happens inside `dlsym`, which programs call
//! before `main`, under the loader's lock and out of allocators.
#![forbid(unsafe_code)]

pub mod abi;
mod nvml;

use std::ffi::CStr;

pub use nvml::{NVML, nvml};

/// What a call is to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// It starts work on the SMs: kernels, cooperative ones too, and graphs.
    Launch,
    /// It uses memory, and starts no kernel: copies, sets, uploads of graphs, prefetches, batches of memory operations.
    Touch,
    /// It gives, takes, maps or shares memory, also in pools and as addresses.
    Alloc,
    /// It waits until work is done, or asks whether it is.
    Sync,
    /// It says something of memory or of a device.
    Info,
    /// The rest.
    Other,
}

/// A parameter, as far as passing it on needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// A pointer to memory of the host, to a result, or to a function.
    Pointer,
    /// An integer of 32 bits, an enumeration or a device.
    U32,
    /// An integer of 64 bits that is no size in bytes, or a handle that is such an integer.
    U64,
    /// A size in bytes.
    Bytes,
    /// A size in bytes, of 32 bits.
    Bytes32,
    /// An address in the device's memory.
    Address,
    /// An address in the device's memory, of 32 bits.
    Address32,
    /// An integer of 16 bits.
    U16,
    /// An integer of 8 bits.
    U8,
    /// A floating-point number of 32 bits.
    F32,
    /// A stream.
    Stream,
    /// A function or a kernel.
    Function,
    /// An executable graph.
    GraphExec,
    /// A graph.
    Graph,
    /// An event.
    Event,
    /// A context.
    Context,
    /// Another handle, of a pointer's size.
    Handle,
    /// A structure of 8 bytes, passed as an integer is.
    Structure8,
    /// A larger structure by value, on the stack.
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

/// A function of the driver: one symbol of its ELF file.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Where in the text its symbol begins; a zero and its signature follow.
    at: u16,
    symbol: u8,
    /// The name is a prefix of the symbol.
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
    /// The symbol in the driver's file, under which `dlsym` finds it.
    pub fn symbol(&self) -> &'static str {
        let at = usize::from(self.at);
        TEXT.get(at..at + usize::from(self.symbol))
            .unwrap_or_default()
    }

    /// The same as a C string.
    pub fn symbol_c(&self) -> &'static CStr {
        let at = usize::from(self.at);
        let bytes = TEXT.as_bytes();
        let bytes = bytes.get(at..=at + usize::from(self.symbol));
        CStr::from_bytes_with_nul(bytes.unwrap_or_default()).unwrap_or_default()
    }

    /// The name by which `cuGetProcAddress` is asked for it, and which a header has for it.
    pub fn name(&self) -> &'static str {
        let at = usize::from(self.at);
        TEXT.get(at..at + usize::from(self.name))
            .unwrap_or_default()
    }

    /// A letter for each parameter, as `functions.txt` explains them.
    pub fn signature(&self) -> &'static str {
        let at = usize::from(self.at) + usize::from(self.symbol) + 1;
        TEXT.get(at..at + usize::from(self.signature))
            .unwrap_or_default()
    }

    /// Its parameters in their order.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter> + use<> {
        self.signature().bytes().filter_map(Parameter::from_letter)
    }

    /// Which parameter, counted from 0, is the first of this kind.
    pub fn position(&self, parameter: Parameter) -> Option<usize> {
        self.parameters().position(|one| one == parameter)
    }

    /// Which parameter is the stream. A launch by configuration has it in there, and a launch without one means stream 0.
    pub fn stream(&self) -> Option<usize> {
        self.position(Parameter::Stream)
    }

    /// Which parameter is the function or the kernel.
    pub fn function(&self) -> Option<usize> {
        self.position(Parameter::Function)
    }

    /// Which parameter is the executable graph.
    pub fn graph_exec(&self) -> Option<usize> {
        self.position(Parameter::GraphExec)
    }

    /// Which parameter is a size in bytes.
    pub fn bytes(&self) -> Option<usize> {
        self.position(Parameter::Bytes)
            .or_else(|| self.position(Parameter::Bytes32))
    }

    /// The version of CUDA that brought this variant: 1000 × major + 10 × minor.
    pub const fn version(&self) -> u32 {
        self.version as u32
    }

    /// Its class.
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Whether stream 0 is the calling thread's own.
    pub const fn is_per_thread(&self) -> bool {
        self.is_per_thread
    }

    /// Whether the preload library stands before it: then it exports the symbol.
    pub const fn is_hooked(&self) -> bool {
        self.is_hooked
    }

    /// Whether it is one of before CUDA 3.2, whose sizes and device addresses have 32 bits. Its symbol is what later versions
    /// have as the name of another function.
    pub const fn is_32_bit(&self) -> bool {
        self.is_32_bit
    }
}

/// The place in [`ENTRIES`] of a symbol.
pub fn index(symbol: &[u8]) -> Option<usize> {
    ENTRIES
        .binary_search_by(|entry| entry.symbol().as_bytes().cmp(symbol))
        .ok()
}

/// The function that has this symbol in the driver's file.
pub fn entry(symbol: &[u8]) -> Option<&'static Entry> {
    ENTRIES.get(index(symbol)?)
}

/// Why there is nothing by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No version has it.
    NotFound,
    /// A later version has it.
    VersionNotSufficient,
}

/// The function that a driver with all of this table gives for a name: the newest that a program of this version knows, and for
/// per-thread streams the legacy one where there is no other.
///
/// A driver decides for itself; this is to check against what it says.
pub fn resolve(
    name: &[u8],
    version: u32,
    is_per_thread: bool,
) -> Result<&'static Entry, Unresolved> {
    let begin = ENTRIES.partition_point(|entry| entry.symbol().as_bytes() < name);
    let mut found: Option<&'static Entry> = None;
    let mut error = Unresolved::NotFound;
    // Every symbol of a name begins with it, so that they are in one stretch, if not alone there.
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
