//! `libweir_preload.so`, the front: it stands before the CUDA driver and NVML in programs that know nothing of it, and is so
//! little that it may be loaded into every program of a container.
//!
//! A program gets at the driver's functions by its symbols, by `dlsym`, or by `cuGetProcAddress`. The first two end here: the
//! library exports [the symbols](preload_table) that it may have to stand before, and `dlsym`. What it finds it shows to the core,
//! `libweir_preload_core.so`, which lies in the same folder, is loaded at the first function of the driver that is looked up,
//! and answers with a wrapper. The third is a wrapper of the core's.
//!
//! `dlsym` is called before `main`, by allocators that set themselves up, by constructors and under the loader's lock. So the
//! front allocates nothing, takes no lock, waits for nobody, has no thread-local variables and nothing that is initialised at
//! first use but atomics whose every writer writes the same, and cannot panic. What it lacks it goes without: without a core it
//! passes everything to the driver.
//!
//! | module | what |
//! |---|---|
//! | `original` | the C library's `dlsym`, and the next one after ours |
//! | `entrance` | our `dlsym` |
//! | `look` | what becomes of a look-up of one of the driver's functions |
//! | `stubs` | the exported functions, and what becomes of the first call of each |
//! | `provider` | whose a function is |
//! | `core` | the library that does the work, loaded once |
//! | `guard` | which threads are about to load it, or to ask it |
//! | `machine` | what cannot be said in Rust: jumps that leave the caller's place and arguments as they are |
//!
//! # What is not caught
//!
//! - `RTLD_NEXT`: the answer is what the loader finds after the caller, untouched. Another preloaded library that looks for the
//!   driver's function so calls it past us. From the program itself our function is next, also while no driver is loaded.
//! - A symbol that a program refers to weakly, to see whether there is a driver: it is there.
//! - `dlvsym`, `dlmopen`, libraries opened with `RTLD_DEEPBIND` that are linked to the driver, and programs that read ELF
//!   files by themselves; also static programs and programs of another C library, into which nothing is preloaded.
//! - Tables from `cuGetExportTable`: the runtime checks that nobody has touched them.
//!
//! # Other preloaded libraries
//!
//! A look-up that is none of ours jumps to the next `dlsym` in the loader's order, which is another preloaded library's where
//! there is one behind us. All it can tell is what it would see without us: every call that comes to us would have come to it,
//! and the jump leaves its caller as it was. A look-up of the driver's function by a handle goes to the C library at once: what
//! another library would put in place of the function would call the function past us.
//!
//! A library before us that exports `dlsym` decides what reaches us; most do not pass on what they find by themselves. Ours
//! should be the first in `LD_PRELOAD`.

mod core;
mod entrance;
mod guard;
mod look;
mod machine;
mod original;
mod provider;
mod stubs;
