//! Exported functions of the driver API, by the names under which programs find them.

mod context;
mod event;
mod graph;
mod launch;
mod memory;
mod stream;
mod system;
mod unsupported;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::calls;
use crate::error::{Error, Result};

/// Address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function, which stays and is never written to.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Runs a call, records it, and returns its `CUresult`; a panic becomes `CUDA_ERROR_UNKNOWN` instead of unwinding into the program.
pub(crate) fn guard(name: &str, call: impl FnOnce() -> Result) -> u32 {
    let result = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(_panic) => Error::UNKNOWN.0,
    };
    calls::record(name, result);
    result
}

/// Declares exported functions, and a table of them by name.
macro_rules! functions {
    ($table:ident: $( fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $body:expr; )*) => {
        $(
            #[allow(non_snake_case, reason = "the interface's name")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $kind),*) -> u32 {
                $crate::export::guard(stringify!($name), || $body)
            }
        )*

        pub(crate) const $table: &[(&str, $crate::export::Address)] = &[
            $( (stringify!($name), $crate::export::Address($name as *const ())), )*
        ];
    };
}
pub(crate) use functions;

/// Returns all exported functions by name.
pub(crate) fn table() -> &'static HashMap<&'static str, Address> {
    static TABLE: OnceLock<HashMap<&'static str, Address>> = OnceLock::new();
    TABLE.get_or_init(|| {
        [
            context::TABLE,
            event::TABLE,
            graph::TABLE,
            launch::TABLE,
            memory::TABLE,
            stream::TABLE,
            system::TABLE,
            unsupported::TABLE,
        ]
        .into_iter()
        .flatten()
        .copied()
        .collect()
    })
}
