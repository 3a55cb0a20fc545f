//! Memory sizes reported to the program: the pod's limit takes the place of the device's memory.
//!
//! `total` is the limit without the memory that a context occupies by itself. `free` is the rest of it that can still be
//! allocated, as far as the device has it. Both come from one snapshot of the account. Without a limit they are the device's, and
//! this library's spare memory counts as free. The limit applies to whichever device the pod has: a pod sees only the one of its
//! slot.

use crate::host::Host;
use preload_ops::System as _;
use std::ffi::c_int;

use super::account::{Account, Kind};
use super::{contexts, limit, pools, write_out};
use crate::driver::{Code, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = info;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = total;
}

/// The pod's view of its device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Memory available to the pod's programs.
    pub(crate) total: u64,
    /// Memory that can still be allocated.
    pub(crate) free: u64,
}

/// Computes the view for a limit, a context's own memory, the memory of other processes, and the device's own `free` and `total`.
fn view_of(
    account: &Account,
    limit: u64,
    residue: u64,
    others: u64,
    free: u64,
    total: u64,
) -> View {
    if limit == 0 {
        let free = free.saturating_add(account.of(Kind::Spare)).min(total);
        return View { total, free };
    }
    let total = limit.min(total).saturating_sub(residue);
    let used = account.of_program().saturating_add(others);
    // Spare memory can be allocated.
    let free = free.saturating_add(account.of(Kind::Spare));
    View {
        total,
        free: total.saturating_sub(used).min(free),
    }
}

/// Returns the view for the device's own `free` and `total`, in bytes.
pub(crate) fn view(free: u64, total: u64) -> View {
    let limit = Host.process().memory_limit();
    pools::refresh();
    let (residue, others) = (contexts::residue(), limit::held_by_others());
    limit::read(|account| view_of(account, limit, residue, others, free, total))
}

/// Returns the bytes that this process holds on the device, its context included.
pub(crate) fn held() -> u64 {
    limit::read(Account::total)
}

/// Returns the device's total memory as reported to the pod, in bytes.
pub(super) fn total_of(total: u64) -> u64 {
    let limit = Host.process().memory_limit();
    if !Host.is_active() || limit == 0 {
        return total;
    }
    limit.min(total).saturating_sub(contexts::residue())
}

fn info(call: &dyn Fn() -> Code, free: *mut usize, total: *mut usize) -> Code {
    // The driver reports the errors; either pointer may be null.
    let code = call();
    if code != SUCCESS || !Host.is_active() {
        return code;
    }
    if let Ok(context) = contexts::current() {
        contexts::register(context);
    }
    let Ok((there, all)) = physical() else {
        return code;
    };
    let view = view(there, all);
    write_out(free, super::physical::size(view.free));
    write_out(total, super::physical::size(view.total));
    code
}

/// Returns the device's own free and total memory in bytes.
pub(super) fn physical() -> Result<(u64, u64), Code> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both numbers are valid for writes.
    let code = unsafe { crate::driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    if code == SUCCESS {
        Ok((free as u64, total as u64))
    } else {
        Err(code)
    }
}

fn total(call: &dyn Fn() -> Code, bytes: *mut usize, _device: c_int) -> Code {
    let code = call();
    if code == SUCCESS && Host.is_active() && !bytes.is_null() {
        // SAFETY: not null, and written by the driver.
        let there = unsafe { bytes.read_unaligned() };
        write_out(bytes, super::physical::size(total_of(there as u64)));
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
        let view = view_of(&account, 10_000, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (9_500, 6_500));
        // Other processes of the pod hold some.
        assert_eq!(
            view_of(&account, 10_000, 500, 6_000, 50_000, 80_000).free,
            500
        );
        assert_eq!(
            view_of(&account, 10_000, 500, 9_000, 50_000, 80_000).free,
            0
        );
        // The device itself is nearly full; spare memory can be allocated all the same.
        assert_eq!(view_of(&account, 10_000, 500, 0, 50, 80_000).free, 150);
        // Without a limit.
        let view = view_of(&account, 0, 500, 0, 50, 80_000);
        assert_eq!((view.total, view.free), (80_000, 150));
        // A limit larger than the device.
        assert_eq!(view_of(&account, 10_000, 500, 0, 50, 8_000).total, 7_500);
        // A limit without room for the context.
        let view = view_of(&account, 300, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (0, 0));
    }
}
