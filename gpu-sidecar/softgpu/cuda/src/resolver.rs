//! `cuGetProcAddress`: finds a function by its name, a CUDA version, and the default stream to use.

use std::ffi::c_void;

#[cfg(test)]
use preload_table::ENTRIES;
use preload_table::{Entry, Unresolved};

use crate::device::VERSION;
use crate::error::{Error, Result};
use crate::export;
use crate::pointer::{Out, Text};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: selects legacy default stream variants.
const LEGACY: u64 = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: selects per-thread variants.
const PER_THREAD: u64 = 2;

/// Result of a search, numbered as `CUdriverProcAddressQueryResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Success = 0,
    NotFound = 1,
    VersionNotSufficient = 2,
}

/// Returns the functions of the driver API up to this driver's version: the preload library's table has later ones, too.
#[cfg(test)]
fn known() -> impl Iterator<Item = &'static Entry> {
    ENTRIES
        .iter()
        .filter(|entry| i32::try_from(entry.version()).is_ok_and(|it| it <= VERSION))
}

/// Returns the symbol of the newest variant which is not newer than the program's version.
fn find(
    name: &str,
    version: i32,
    is_per_thread: bool,
) -> std::result::Result<&'static str, Status> {
    let resolve = |version: i32| {
        let version = u32::try_from(version).unwrap_or(0);
        preload_table::resolve(name.as_bytes(), version, is_per_thread).map(Entry::symbol)
    };
    resolve(version).map_err(|error| match error {
        // A driver knows no name which only later ones have.
        Unresolved::VersionNotSufficient if resolve(VERSION).is_ok() => {
            Status::VersionNotSufficient
        }
        Unresolved::VersionNotSufficient | Unresolved::NotFound => Status::NotFound,
    })
}

fn resolve(
    name: Text,
    out: Out<*const c_void>,
    version: i32,
    flags: u64,
    is_per_thread: bool,
) -> Result<Status> {
    if out.is_null() || flags & !(LEGACY | PER_THREAD) != 0 || flags == LEGACY | PER_THREAD {
        return Err(Error::INVALID_VALUE);
    }
    if version > VERSION {
        return Err(Error::INVALID_VALUE);
    }
    let name = name.string()?;
    if name.is_empty() {
        // A CUDA runtime first requests the empty name, and takes the result for a working resolver.
        let own = export::table().get("cuGetProcAddress_v2");
        out.put(own.ok_or(Error::NOT_FOUND)?.0.cast())?;
        return Ok(Status::Success);
    }
    let is_per_thread = match flags {
        LEGACY => false,
        PER_THREAD => true,
        _ => is_per_thread,
    };
    match find(&name, version, is_per_thread) {
        Ok(symbol) => {
            let address = export::table().get(symbol).ok_or(Error::NOT_FOUND)?;
            out.put(address.0.cast())?;
            Ok(Status::Success)
        }
        Err(status) => {
            out.put(std::ptr::null())?;
            Ok(status)
        }
    }
}

/// Implements `cuGetProcAddress` and `_ptsz`, which defaults to per-thread streams without a flag: fails for an unknown or too
/// new function.
pub(crate) fn get(
    name: Text,
    out: Out<*const c_void>,
    version: i32,
    flags: u64,
    is_per_thread: bool,
) -> Result {
    match resolve(name, out, version, flags, is_per_thread)? {
        Status::Success => Ok(()),
        Status::NotFound | Status::VersionNotSufficient => Err(Error::NOT_FOUND),
    }
}

/// Implements `cuGetProcAddress_v2` and `_ptsz`, which defaults to per-thread streams without a flag.
pub(crate) fn get_v2(
    name: Text,
    out: Out<*const c_void>,
    version: i32,
    flags: u64,
    status: Out<u32>,
    is_per_thread: bool,
) -> Result {
    let found = resolve(name, out, version, flags, is_per_thread)?;
    status.put_if_wanted(found as u32);
    // With a destination for the status, an unknown function is no error.
    if found == Status::Success || !status.is_null() {
        return Ok(());
    }
    Err(Error::NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_the_stream_choose_the_variant() {
        for (name, version, is_per_thread, symbol) in [
            ("cuMemAlloc", 3020, false, Ok("cuMemAlloc_v2")),
            ("cuMemAlloc", 13_000, true, Ok("cuMemAlloc_v2")),
            ("cuLaunchKernel", 4000, false, Ok("cuLaunchKernel")),
            ("cuLaunchKernel", 7000, true, Ok("cuLaunchKernel_ptsz")),
            (
                "cuLaunchKernel",
                3020,
                false,
                Err(Status::VersionNotSufficient),
            ),
            ("cuMemcpyHtoD", 12_000, true, Ok("cuMemcpyHtoD_v2_ptds")),
            ("cuCtxCreate", 12_040, false, Ok("cuCtxCreate_v3")),
            ("cuCtxCreate", 13_000, false, Ok("cuCtxCreate_v4")),
            ("cuGetProcAddress", 11_030, false, Ok("cuGetProcAddress")),
            ("cuGetProcAddress", 12_000, false, Ok("cuGetProcAddress_v2")),
            (
                "cuStreamBeginCapture",
                10_010,
                true,
                Ok("cuStreamBeginCapture_v2_ptsz"),
            ),
            ("", 0, false, Err(Status::NotFound)),
            (
                "cuCheckpointOperationComplete",
                13_000,
                false,
                Err(Status::NotFound),
            ),
            ("cuMemAlloc_v2", 13_000, false, Err(Status::NotFound)),
        ] {
            assert_eq!(
                find(name, version, is_per_thread),
                symbol,
                "{name} {version}"
            );
        }
    }

    #[test]
    fn every_listed_symbol_is_exported() {
        assert!(known().count() > 600);
        for entry in known() {
            let symbol = entry.symbol();
            assert!(export::table().contains_key(symbol), "{symbol}");
        }
    }
}
