//! Memory allocated by the driver: see [`Natives`].

use preload_state::memory::{Kind, Native, Natives};

use super::state::lock;
use super::{current, limit, measure, spare};
use crate::cuda::{Address, Code, Handle, SUCCESS};
use crate::outcome::{Call, CallFor, Outcome, Reason};
use crate::platform::Platform;

/// Lets the driver allocate memory within the limit, and passes the driver's result to `keep`, which enters it in the table.
fn make<P: Platform, T: Copy>(
    host: P,
    kind: Kind,
    bytes: u64,
    call: CallFor<'_, T>,
    keep: impl FnOnce(&mut Natives, T, Native),
) -> Result<T, Code> {
    spare::reserve(host, kind, bytes)?;
    let made = spare::with_room(host, call);
    match made {
        Ok(made) => {
            let context = current::current(host).unwrap_or(0);
            let native = Native {
                bytes,
                kind,
                context,
            };
            keep(&mut lock(&host.memory().native), made, native);
        }
        Err(_) => limit::release(host, kind, bytes),
    }
    made
}

/// Makes a plain allocation by the driver.
pub(super) fn memory<P: Platform>(
    host: P,
    bytes: u64,
    call: CallFor<'_, Address>,
) -> Result<Address, Code> {
    of_kind(host, Kind::Native, bytes, call)
}

fn of_kind<P: Platform>(
    host: P,
    kind: Kind,
    bytes: u64,
    call: CallFor<'_, Address>,
) -> Result<Address, Code> {
    make(host, kind, bytes, call, |natives, at, native| {
        natives.keep_memory(at, native);
    })
}

/// Makes an allocation that stays the driver's: managed memory ([`Kind::Managed`]), or one with an address of 32 bits ([`Kind::Native`]).
pub fn alloc<P: Platform>(
    host: P,
    kind: Kind,
    bytes: u64,
    call: CallFor<'_, Address>,
) -> Outcome<Address> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if bytes == 0 {
        return Outcome::Pass(Reason::Invalid);
    }
    Outcome::of(of_kind(host, kind, bytes, call))
}

/// Frees memory of the driver. Unknown memory is not subtracted: it was imported, or belongs to a pool, which is measured.
pub fn free<P: Platform>(host: P, call: Call<'_>, address: Address) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if address == 0 {
        return Outcome::Pass(Reason::Invalid);
    }
    let natives = &host.memory().native;
    // Removed first, because the driver may return the same address to another thread.
    let known = lock(natives).take_memory(address);
    let code = call();
    match known {
        Some(native) if code == SUCCESS => limit::release(host, native.kind, native.bytes),
        Some(native) => {
            lock(natives).keep_memory(address, native);
        }
        None => measure::refresh(host),
    }
    Outcome::Done(code)
}

/// Creates an array of `bytes`; `None` for one without memory.
pub fn array<P: Platform>(
    host: P,
    bytes: Option<u64>,
    call: CallFor<'_, Handle>,
) -> Outcome<Handle> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let Some(bytes) = bytes else {
        return Outcome::Pass(Reason::Foreign);
    };
    Outcome::of(make(
        host,
        Kind::Array,
        bytes,
        call,
        |natives, array, native| {
            natives.keep_array(array, native);
        },
    ))
}

/// Destroys an array, which then no longer counts.
pub fn destroy<P: Platform>(host: P, call: Call<'_>, array: Handle) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let natives = &host.memory().native;
    let known = lock(natives).take_array(array);
    let code = call();
    match known {
        Some(native) if code == SUCCESS => limit::release(host, native.kind, native.bytes),
        Some(native) => {
            lock(natives).keep_array(array, native);
        }
        None => {}
    }
    Outcome::Done(code)
}
