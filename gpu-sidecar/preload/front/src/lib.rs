//! `libweir_preload.so`, the front: intercepts the CUDA driver API and NVML in unmodified programs. It is small enough to be
//! loaded into every program of a container.
//!
//! A program obtains the driver's functions by linking to its symbols, by `dlsym`, or by `cuGetProcAddress`. The front handles
//! the first two: it exports [the symbols](preload_table) that it may intercept, and `dlsym`. It passes each function it finds to
//! the core, `libweir_preload_core.so`, which is in the same folder and is loaded when the first driver function is looked up.
//! The core returns a wrapper. `cuGetProcAddress` itself is wrapped by the core.
//!
//! `dlsym` is called before `main`, by allocators during their initialisation, by constructors and under the loader's lock. The
//! front therefore allocates nothing, takes no lock, never waits, has no thread-local variables, cannot panic, and initialises
//! lazily only atomics to which every writer stores the same value. It fails open: without a core every call passes to the
//! driver.
//!
//! | module | purpose |
//! |---|---|
//! | `original` | the C library's `dlsym`, and the next one in the loader's order |
//! | `entrance` | the exported `dlsym` |
//! | `lookup` | look-ups of the driver's functions by name |
//! | `stubs` | the exported functions, each bound at its first call |
//! | `provider` | the library that defines a function |
//! | `core` | loading and calling the core |
//! | `guard` | threads that are loading or calling the core |
//! | `asm` | jumps that preserve the return address and the arguments |
//!
//! # Calls which are not intercepted
//!
//! - `RTLD_NEXT`: the result is the loader's next definition after the caller. Another preloaded library which looks up a driver
//!   function this way bypasses the front. The front's own function is next for the program itself, even while no driver is
//!   loaded.
//! - Weak references to a driver symbol as a test for a driver: the symbol is always defined.
//! - `dlvsym`, `dlmopen`, libraries opened with `RTLD_DEEPBIND` which are linked to the driver, and programs that parse ELF files
//!   themselves; also static programs and programs with another C library, into which nothing is preloaded.
//! - Tables from `cuGetExportTable`: the runtime checks that they are unmodified.
//!
//! # Other preloaded libraries
//!
//! A look-up which the front does not handle jumps to the next `dlsym` in the loader's order, which may belong to another
//! preloaded library. That library observes the same calls as without the front, because the jump preserves the return address. A
//! look-up of a driver function by handle goes directly to the C library: a replacement supplied by another library would call
//! the driver function past the front.
//!
//! A preloaded library before the front which exports `dlsym` decides which look-ups reach the front, and most such libraries do
//! not pass on what they resolve themselves. The front should be first in `LD_PRELOAD`.

mod asm;
mod core;
mod entrance;
mod guard;
mod lookup;
mod original;
mod provider;
mod stubs;
