//! Memory sizes reported to the program: see [`preload_state::memory::reported`].

use preload_state::memory::{Account, View, reported, reported_total};

use super::{contexts, current, limit, measure, movable};
use crate::cuda::SUCCESS;
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::Platform;

/// Returns the view for the device's own `free` and `total`, in bytes.
pub fn view<P: Platform>(host: P, free: u64, total: u64) -> View {
    let limit = host.process().memory_limit();
    // What is on the host counts as if it were on the device: the program sees no difference.
    let device = current::current(host).and_then(|context| current::device_of(host, context));
    let free = free.saturating_sub(movable::away_bytes(host, device.ok()));
    measure::refresh(host);
    let (residue, others) = (contexts::residue(host), limit::held_by_others(host));
    limit::read(host, |account| {
        reported(account, limit, residue, others, free, total)
    })
}

/// Returns the bytes that this process holds on the device, its context included.
pub fn held<P: Platform>(host: P) -> u64 {
    limit::read(host, Account::total)
}

/// Reports free and total memory. Returns `None` if the driver's values are to stay.
pub fn info<P: Platform>(host: P, call: Call<'_>) -> Outcome<Option<View>> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    // The driver reports the errors; either pointer may be null.
    let code = call();
    if code != SUCCESS {
        return Outcome::Fail(code);
    }
    if let Ok(context) = current::current(host) {
        contexts::register(host, context);
    }
    let physical = host.memory_info();
    Outcome::Done(physical.ok().map(|(free, total)| view(host, free, total)))
}

/// As [`info()`], for the historical function with sizes of 32 bits.
pub fn info_32<P: Platform>(host: P, call: Call<'_>) -> Outcome<Option<View>> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let code = call();
    if code != SUCCESS {
        return Outcome::Fail(code);
    }
    let physical = host.memory_info();
    Outcome::Done(physical.ok().map(|(free, total)| view(host, free, total)))
}

/// Returns the device's total memory as reported to the pod, in bytes.
pub fn total_of<P: Platform>(host: P, total: u64) -> u64 {
    if !host.is_active() {
        return total;
    }
    reported_total(
        host.process().memory_limit(),
        contexts::residue(host),
        total,
    )
}
