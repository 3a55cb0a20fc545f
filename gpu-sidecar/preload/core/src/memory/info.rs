//! What the program is told of its device: the pod's limit is the device.
//!
//! `total` is the limit less what a context keeps, `free` is what can still be had of it, as far as the device itself has
//! it; both come from one look at the account. Without a limit they are the device's, and what lies idle here is free. The limit is the pod's, of whichever device: a pod sees the one of its slot.

use std::ffi::c_int;

use super::account::{Account, Kind};
use super::{contexts, limit, pools, put};
use crate::driver::{Code, SUCCESS};
use crate::hook::hooks;
use crate::link;

hooks! { HOOKS:
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = info;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = total;
}

/// The pod's view of its device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// All that its programs can have.
    pub(crate) total: u64,
    /// What can still be had.
    pub(crate) free: u64,
}

/// What of a limit is there and free, when the device itself has so much.
fn seen(account: &Account, limit: u64, residue: u64, others: u64, free: u64, total: u64) -> View {
    if limit == 0 {
        let free = free.saturating_add(account.of(Kind::Spare)).min(total);
        return View { total, free };
    }
    let total = limit.min(total).saturating_sub(residue);
    let used = account.of_program().saturating_add(others);
    // What lies idle is there for whoever asks.
    let free = free.saturating_add(account.of(Kind::Spare));
    View {
        total,
        free: total.saturating_sub(used).min(free),
    }
}

/// The view, where the device has so much free and in all.
pub(crate) fn view(free: u64, total: u64) -> View {
    let limit = link::memory_limit();
    pools::refresh();
    let (residue, others) = (contexts::residue(), limit::others());
    limit::read(|account| seen(account, limit, residue, others, free, total))
}

/// What this process holds of the device, its context included.
pub(crate) fn held() -> u64 {
    limit::read(Account::total)
}

/// What all of the device is, for the pod.
pub(super) fn total_of(total: u64) -> u64 {
    let limit = link::memory_limit();
    if !link::is_active() || limit == 0 {
        return total;
    }
    limit.min(total).saturating_sub(contexts::residue())
}

fn info(call: &dyn Fn() -> Code, free: *mut usize, total: *mut usize) -> Code {
    // The driver says what is wrong with the call; either pointer may be null.
    let code = call();
    if code != SUCCESS || !link::is_active() {
        return code;
    }
    if let Ok(context) = contexts::current() {
        contexts::seen(context);
    }
    let Ok((there, all)) = physical() else {
        return code;
    };
    let view = view(there, all);
    put(free, super::physical::size(view.free));
    put(total, super::physical::size(view.total));
    code
}

/// What the device itself has free and in all.
pub(super) fn physical() -> Result<(u64, u64), Code> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two numbers.
    let code = unsafe { crate::driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    if code == SUCCESS {
        Ok((free as u64, total as u64))
    } else {
        Err(code)
    }
}

fn total(call: &dyn Fn() -> Code, bytes: *mut usize, _device: c_int) -> Code {
    let code = call();
    if code == SUCCESS && link::is_active() && !bytes.is_null() {
        // SAFETY: not null, and the driver has written a number there.
        let there = unsafe { bytes.read_unaligned() };
        put(bytes, super::physical::size(total_of(there as u64)));
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_used_and_free_agree() {
        let mut account = Account::default();
        account.add(Kind::Residue, 500);
        account.add(Kind::Plain, 2_000);
        account.add(Kind::Pool, 1_000);
        account.add(Kind::Spare, 100);
        let view = seen(&account, 10_000, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (9_500, 6_500));
        // Others of the pod hold some.
        assert_eq!(seen(&account, 10_000, 500, 6_000, 50_000, 80_000).free, 500);
        assert_eq!(seen(&account, 10_000, 500, 9_000, 50_000, 80_000).free, 0);
        // The device itself is nearly full; what is spare here can be had all the same.
        assert_eq!(seen(&account, 10_000, 500, 0, 50, 80_000).free, 150);
        // No limit.
        let view = seen(&account, 0, 500, 0, 50, 80_000);
        assert_eq!((view.total, view.free), (80_000, 150));
        // A limit that is larger than the device.
        assert_eq!(seen(&account, 10_000, 500, 0, 50, 8_000).total, 7_500);
        // One that has no room for the context.
        let view = seen(&account, 300, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (0, 0));
    }
}
