//! Memory that the program creates and maps itself (`cuMemCreate`, `cuMemMap`). It is left unchanged and counted.
//!
//! The program may not operate on this library's mappings, just as it may not on the driver's allocations.
//!
//! The lock of the record is held over the driver's calls, which are short and which the driver serialises itself, so that a reused
//! handle or address is never mistaken for the previous one.

use preload_state::memory::{Kind, Location, ON_DEVICE};

use super::state::lock;
use super::{device, limit, spare};
use crate::cuda::{Address, INVALID_VALUE, SUCCESS};
use crate::outcome::{Call, CallFor, Outcome, Reason};
use crate::platform::Platform;

fn is_ours<P: Platform>(host: P, address: Address) -> bool {
    host.is_active() && host.memory().owner(address).is_some()
}

fn release_bytes<P: Platform>(host: P, bytes: u64) {
    if bytes > 0 {
        limit::release(host, Kind::Program, bytes);
    }
}

/// Creates physical memory at a location.
pub fn create<P: Platform>(
    host: P,
    bytes: u64,
    location: Location,
    call: CallFor<'_, u64>,
) -> Outcome<u64> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if location.kind != ON_DEVICE {
        return Outcome::Pass(Reason::Foreign);
    }
    // The driver refuses sizes that are no multiple of the granularity, whatever the limit.
    let slot = host.memory().slot(location.id);
    let traits = slot.and_then(|slot| device::traits(host, slot));
    if traits.is_none_or(|traits| bytes == 0 || !bytes.is_multiple_of(traits.granule)) {
        return Outcome::Pass(Reason::Invalid);
    }
    if let Err(code) = spare::reserve(host, Kind::Program, bytes) {
        return Outcome::Fail(code);
    }
    let mut program = lock(&host.memory().program);
    let made = call();
    match made {
        Ok(handle) => program.created(handle, bytes),
        Err(_) => limit::release(host, Kind::Program, bytes),
    }
    Outcome::of(made)
}

/// Releases a handle of physical memory.
pub fn release<P: Platform>(host: P, call: Call<'_>, handle: u64) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let (code, gone) = {
        let mut program = lock(&host.memory().program);
        let code = call();
        let is_success = code == SUCCESS;
        (
            code,
            if is_success {
                program.released(handle)
            } else {
                0
            },
        )
    };
    release_bytes(host, gone);
    Outcome::Done(code)
}

/// Imports physical memory. `call` returns its handle unless the program asks for none.
pub fn import<P: Platform>(host: P, call: CallFor<'_, Option<u64>>) -> Outcome<Option<u64>> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let mut program = lock(&host.memory().program);
    let made = call();
    if let Ok(Some(handle)) = made {
        program.created(handle, 0);
    }
    Outcome::of(made)
}

/// Returns a handle of the memory at an address. Plain allocations of this library have no handle that a program could get.
pub fn retain<P: Platform>(
    host: P,
    address: Address,
    call: CallFor<'_, Option<u64>>,
) -> Outcome<Option<u64>> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if is_ours(host, address) {
        return Outcome::Fail(INVALID_VALUE);
    }
    let mut program = lock(&host.memory().program);
    let made = call();
    if let Ok(Some(handle)) = made {
        program.retained(handle, address);
    }
    Outcome::of(made)
}

/// Maps physical memory at an address of the program.
pub fn map<P: Platform>(
    host: P,
    call: Call<'_>,
    address: Address,
    bytes: u64,
    handle: u64,
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if is_ours(host, address) {
        return Outcome::Fail(INVALID_VALUE);
    }
    let mut program = lock(&host.memory().program);
    let code = call();
    if code == SUCCESS {
        program.mapped(address, bytes, handle);
    }
    Outcome::Done(code)
}

/// Unmaps all mappings in a range.
pub fn unmap<P: Platform>(host: P, call: Call<'_>, address: Address, bytes: u64) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if is_ours(host, address) {
        return Outcome::Fail(INVALID_VALUE);
    }
    let (code, gone) = {
        let mut program = lock(&host.memory().program);
        let code = call();
        let is_success = code == SUCCESS;
        let gone = is_success.then(|| program.unmapped(address, bytes));
        (code, gone.unwrap_or(0))
    };
    release_bytes(host, gone);
    Outcome::Done(code)
}

/// Sets the access to mappings, or frees reserved addresses: passes to the driver unless they are this library's.
pub fn touch<P: Platform>(host: P, address: Address) -> Outcome {
    if is_ours(host, address) {
        Outcome::Fail(INVALID_VALUE)
    } else {
        Outcome::Pass(Reason::Foreign)
    }
}
