//! `cuGetProcAddress`: a function by its name, a version of CUDA, and which default stream is meant.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::OnceLock;

use crate::device::VERSION;
use crate::error::{Error, Result};
use crate::export;
use crate::pointer::{Out, Text};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`
const LEGACY: u64 = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// A variant of a function.
#[derive(Clone, Copy, Debug)]
struct Variant {
    version: i32,
    is_per_thread: bool,
    symbol: &'static str,
}

/// What is said about a symbol besides its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Success = 0,
    NotFound = 1,
    VersionNotSufficient = 2,
}

/// All lines of the list of symbols.
pub(crate) fn lines() -> impl Iterator<Item = [&'static str; 4]> {
    include_str!("symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(' ').collect::<Vec<_>>().try_into().ok())
}

fn variants() -> &'static HashMap<&'static str, Vec<Variant>> {
    static VARIANTS: OnceLock<HashMap<&'static str, Vec<Variant>>> = OnceLock::new();
    VARIANTS.get_or_init(|| {
        let mut all = HashMap::<_, Vec<_>>::new();
        for [name, flag, version, symbol] in lines() {
            all.entry(name).or_default().push(Variant {
                version: version.parse().unwrap_or(i32::MAX),
                is_per_thread: flag == "2",
                symbol,
            });
        }
        all
    })
}

/// The newest variant that a program of this version knows.
fn find(
    name: &str,
    version: i32,
    is_per_thread: bool,
) -> std::result::Result<&'static str, Status> {
    let variants = variants().get(name).ok_or(Status::NotFound)?;
    let newest = |is_per_thread| {
        variants
            .iter()
            .filter(|variant| variant.is_per_thread == is_per_thread && variant.version <= version)
            .max_by_key(|variant| variant.version)
    };
    // Where there is no variant for per-thread streams, the one there is will do.
    let found = newest(is_per_thread).or_else(|| newest(false));
    found
        .map(|variant| variant.symbol)
        .ok_or(Status::VersionNotSufficient)
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
        // A runtime begins with the empty name, and takes what it gets for a resolver that works.
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

/// `cuGetProcAddress`
pub(crate) fn get(name: Text, out: Out<*const c_void>, version: i32, flags: u64) -> Result {
    match resolve(name, out, version, flags, false)? {
        Status::Success => Ok(()),
        Status::NotFound | Status::VersionNotSufficient => Err(Error::NOT_FOUND),
    }
}

/// `cuGetProcAddress_v2`, and `_ptsz`, by which per-thread streams are meant where no flag says otherwise.
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
    // With somewhere to say why, a function that is not there is no error.
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
    fn every_symbol_there_is_a_name_for_is_exported() {
        for [_, _, _, symbol] in lines() {
            assert!(export::table().contains_key(symbol), "{symbol}");
        }
    }
}
