//! Memory that the program creates and maps itself (`cuMemCreate`, `cuMemMap`). It is counted, and moves to the host and back like the plain
//! allocations: see [`preload_state::memory::Program`] for its handles.
//!
//! The program may not operate on this library's mappings, just as it may not on the driver's allocations.
//!
//! The lock of the record is held over the driver's calls, which are short and which the driver serialises itself, so that a reused
//! handle or address is never mistaken for the previous one. What makes or examines memory waits while the process's memory is on the
//! host; releases and unmappings do not, they wait for a move in progress.

use std::os::fd::OwnedFd;

use preload_state::memory::{Access, Freed, Kind, ON_DEVICE, Properties};

use super::movable::{self, moves, program_key};
use super::state::lock;
use super::{device, limit, spare};
use crate::cuda::{Address, Code, INVALID_VALUE, SUCCESS};
use crate::outcome::{Call, CallFor, Outcome, Reason};
use crate::platform::Platform;
use crate::{capture_mode, residency, touch};

fn is_ours<P: Platform>(host: P, address: Address) -> bool {
    host.is_active() && host.memory().owner(address).is_some()
}

/// Counts what is freed, and drops its copies on the host.
fn free<P: Platform>(host: P, freed: &Freed) {
    for id in &freed.gone {
        movable::forget(host, program_key(*id));
    }
    if freed.bytes > 0 {
        limit::release(host, Kind::Program, freed.bytes);
    }
}

/// Creates physical memory with these properties. Returns the handle for the program.
pub fn create<P: Platform>(
    host: P,
    bytes: u64,
    properties: &Properties,
    call: CallFor<'_, u64>,
) -> Outcome<u64> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if properties.location.kind != ON_DEVICE {
        return Outcome::Pass(Reason::Foreign);
    }
    // The driver refuses sizes that are no multiple of the granularity, whatever the limit.
    let slot = host.memory().slot(properties.location.id);
    let traits = slot.and_then(|slot| device::traits(host, slot));
    if traits.is_none_or(|traits| bytes == 0 || !bytes.is_multiple_of(traits.granule)) {
        return Outcome::Pass(Reason::Invalid);
    }
    let _there = touch::hold(host);
    if let Err(code) = spare::reserve(host, Kind::Program, bytes) {
        return Outcome::Fail(code);
    }
    let context = host.current_context().unwrap_or(0);
    let created = spare::with_room(host, || {
        let mut program = lock(&host.memory().program);
        let handle = call()?;
        Ok(program.created(handle, bytes, Some((*properties, context))))
    });
    match created {
        Ok(own) => {
            residency::wake_mover(host);
            Outcome::Done(own)
        }
        Err(code) => {
            limit::release(host, Kind::Program, bytes);
            Outcome::Fail(code)
        }
    }
}

/// Releases a handle of physical memory.
pub fn release<P: Platform>(host: P, call: Call<'_>, handle: u64) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let moving = moves(host);
    let (code, freed) = {
        let mut program = lock(&host.memory().program);
        let is_name = program.is_name(handle);
        let code = if is_name { SUCCESS } else { call() };
        if code != SUCCESS {
            return Outcome::Done(code);
        }
        let (freed, last) = program.released(handle);
        if let Some(real) = last {
            capture_mode::relaxed(host, || host.release_memory(real));
        }
        (code, freed)
    };
    drop(moving);
    free(host, &freed);
    Outcome::Done(code)
}

/// Imports physical memory. `call` returns its handle unless the program asks for none. Returns the handle for the program.
pub fn import<P: Platform>(host: P, call: CallFor<'_, Option<u64>>) -> Outcome<Option<u64>> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let _there = touch::hold(host);
    let mut program = lock(&host.memory().program);
    let made = call();
    Outcome::of(made.map(|made| made.map(|handle| program.created(handle, 0, None))))
}

/// Exports the memory of a handle. `call` exports that of the handle that the program passes; `named` takes the descriptor of memory whose handle
/// is a name.
pub fn export<P: Platform>(
    host: P,
    call: Call<'_>,
    handle: u64,
    named: impl FnOnce(OwnedFd),
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let _there = touch::hold(host);
    let mut program = lock(&host.memory().program);
    let code = if program.is_name(handle) {
        let real = program.real(handle).ok_or(INVALID_VALUE);
        match real.and_then(|real| host.export_memory(real)) {
            Ok(file) => {
                named(file);
                SUCCESS
            }
            Err(code) => code,
        }
    } else {
        call()
    };
    if code == SUCCESS {
        program.exported(handle);
    }
    Outcome::Done(code)
}

/// Returns the properties of the memory of a handle, if it is a name; otherwise the driver knows them.
pub fn properties<P: Platform>(host: P, handle: u64) -> Outcome<Properties> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let program = lock(&host.memory().program);
    match program
        .properties(handle)
        .filter(|_| program.is_name(handle))
    {
        Some(properties) => Outcome::Done(properties),
        None => Outcome::Pass(Reason::Foreign),
    }
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
    let _there = touch::hold(host);
    let mut program = lock(&host.memory().program);
    let is_surplus = program.is_named_at(address) && program.has_real_at(address);
    let made = call();
    Outcome::of(made.map(|made| {
        made.map(|real| {
            let handle = program.retained(real, address);
            if is_surplus {
                // The names have one of the driver's handles already.
                capture_mode::relaxed(host, || host.release_memory(real));
            }
            handle
        })
    }))
}

/// Maps physical memory at an address of the program. `offset` and `flags` are 0 in every valid call.
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
    let _there = touch::hold(host);
    let mut program = lock(&host.memory().program);
    let code = if program.is_name(handle) {
        let real = program.real(handle).ok_or(INVALID_VALUE);
        code_of(real.and_then(|real| host.map(address, bytes, real)))
    } else {
        call()
    };
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
    // Memory whose handle the program keeps returns first: it may be mapped elsewhere next.
    let strands = lock(&host.memory().program).would_strand(address, bytes);
    let _there = strands.then(|| touch::hold(host));
    let moving = moves(host);
    let freed = {
        let mut program = lock(&host.memory().program);
        let own = program.in_range(address, bytes);
        let code = if own.iter().any(|(_, _, is_away)| *is_away) {
            // The driver knows only those which are on the device.
            let mut there = own.iter().filter(|(_, _, is_away)| !is_away);
            code_of(there.try_for_each(|(at, bytes, _)| host.unmap(*at, *bytes)))
        } else {
            call()
        };
        if code != SUCCESS {
            return Outcome::Done(code);
        }
        program.unmapped(address, bytes)
    };
    drop(moving);
    free(host, &freed);
    Outcome::Done(SUCCESS)
}

/// Sets the access of devices to mappings of the program.
pub fn set_access<P: Platform>(
    host: P,
    call: Call<'_>,
    address: Address,
    bytes: u64,
    access: &[Access],
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if is_ours(host, address) {
        return Outcome::Fail(INVALID_VALUE);
    }
    let _there = touch::hold(host);
    let mut program = lock(&host.memory().program);
    let code = call();
    if code == SUCCESS {
        program.set_access(address, bytes, access);
    }
    Outcome::Done(code)
}

/// Frees reserved addresses: passes to the driver unless they are this library's.
pub fn free_addresses<P: Platform>(host: P, address: Address) -> Outcome {
    if is_ours(host, address) {
        Outcome::Fail(INVALID_VALUE)
    } else {
        Outcome::Pass(Reason::Foreign)
    }
}

/// Notes that memory of the program was bound to a multicast object or to a sparse array, whose handles are not known: nothing of the process moves
/// from then on.
pub fn bind<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let _there = touch::hold(host);
    let code = call();
    if code == SUCCESS {
        host.process().note_bound_memory();
    }
    Outcome::Done(code)
}

const fn code_of(result: Result<(), Code>) -> Code {
    match result {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}
