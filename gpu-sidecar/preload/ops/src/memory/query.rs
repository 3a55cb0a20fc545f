//! Queries of addresses, answered as for an allocation of the driver's own.
//!
//! The driver is called first, so that it reports errors. Its results for the mapping are then replaced by those of the
//! allocation. An address in no allocation is queried as an address `unknown` to the driver.

use std::ffi::c_int;

use preload_state::memory::{Allocation, Table};

use super::movable;
use super::state::{Slot, lock};
use crate::cuda::{Address, Code, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::Platform;
use crate::touch;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`; the constants below are attributes of the same enumeration.
const CONTEXT: c_int = 1;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_IPC_CAPABLE: c_int = 10;
const RANGE_BEGIN: c_int = 11;
const RANGE_BYTES: c_int = 12;
const HANDLE_TYPES: c_int = 14;
const MAPPING_BYTES: c_int = 18;
const MAPPING_BEGIN: c_int = 19;
const BLOCK_ID: c_int = 20;

/// Value of an attribute, in the type that the driver writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// Handle, address, size or number of 64 bits.
    Wide(u64),
    /// Number of 32 bits.
    Narrow(u32),
    /// Truth value of one byte.
    Flag(bool),
}

fn owner<P: Platform>(host: P, address: Address) -> Option<&'static Slot> {
    if !host.is_active() {
        return None;
    }
    host.memory().owner(address)
}

/// Returns the first address and the size of the allocation at an address.
pub fn address_range<P: Platform>(
    host: P,
    address: Address,
    call: Call<'_>,
    unknown: Call<'_>,
) -> Outcome<(Address, u64)> {
    let Some(slot) = owner(host, address) else {
        return Outcome::Pass(Reason::Foreign);
    };
    let known = {
        let table = lock(&slot.table);
        let found = table.find(address);
        found.map(|(at, allocation)| (at, allocation.requested))
    };
    let Some(range) = known else {
        return Outcome::Fail(unknown());
    };
    if movable::is_away(slot, address) {
        return Outcome::Done(range);
    }
    match call() {
        SUCCESS => Outcome::Done(range),
        code => Outcome::Fail(code),
    }
}

/// Returns the allocation's value of an attribute; `None` if the driver's is right.
fn value(
    table: &Table,
    at: Address,
    allocation: &Allocation,
    attribute: c_int,
) -> Option<Attribute> {
    Some(match attribute {
        CONTEXT => Attribute::Wide(allocation.context as u64),
        SYNC_MEMOPS => Attribute::Flag(allocation.sync_memops),
        BUFFER_ID | BLOCK_ID => Attribute::Wide(allocation.id),
        IS_IPC_CAPABLE => Attribute::Flag(!allocation.is_opened() && table.is_shareable()),
        RANGE_BEGIN | MAPPING_BEGIN => Attribute::Wide(at),
        RANGE_BYTES => Attribute::Wide(allocation.requested),
        MAPPING_BYTES => Attribute::Wide(allocation.bytes()),
        HANDLE_TYPES => Attribute::Narrow(0),
        _ => return None,
    })
}

/// Queries attributes of an address. After a call of the driver that succeeds, `correct` gets a function that returns the value of an
/// attribute if the driver's has to be replaced.
pub fn attributes<P: Platform>(
    host: P,
    address: Address,
    call: Call<'_>,
    unknown: Call<'_>,
    correct: impl FnOnce(&dyn Fn(c_int) -> Option<Attribute>),
) -> Outcome {
    let Some(slot) = owner(host, address) else {
        return Outcome::Pass(Reason::Foreign);
    };
    // The driver knows no attributes of memory that is not there.
    let _there = movable::is_away(slot, address).then(|| touch::hold(host));
    let table = lock(&slot.table);
    let Some((at, allocation)) = table.find(address) else {
        return Outcome::Done(unknown());
    };
    let code = call();
    if code == SUCCESS {
        correct(&|attribute| value(&table, at, allocation, attribute));
    }
    Outcome::Done(code)
}

/// Sets `SYNC_MEMOPS`, the only attribute that can be set. The driver sets it for the mapping too, where it can. `value` returns the
/// program's value; `None` if there is none.
pub fn set_attribute<P: Platform>(
    host: P,
    address: Address,
    attribute: c_int,
    call: Call<'_>,
    value: impl FnOnce() -> Option<bool>,
) -> Outcome {
    let Some(slot) = owner(host, address) else {
        return Outcome::Pass(Reason::Foreign);
    };
    let _there = movable::is_away(slot, address).then(|| touch::hold(host));
    let mut table = lock(&slot.table);
    let Some(allocation) = table.find_mut(address) else {
        return Outcome::Fail(INVALID_VALUE);
    };
    let code: Code = call();
    if attribute != SYNC_MEMOPS || !matches!(code, SUCCESS | NOT_SUPPORTED) {
        return Outcome::Done(code);
    }
    match value() {
        Some(value) => {
            allocation.sync_memops = value;
            Outcome::Done(SUCCESS)
        }
        None => Outcome::Done(code),
    }
}
