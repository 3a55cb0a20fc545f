//! Memory sizes reported to the program: the pod's limit takes the place of the device's memory.
//!
//! `total` is the limit without the memory that a context occupies by itself. `free` is the rest of it that can still be
//! allocated, as far as the device has it. Both come from one snapshot of the account. Without a limit they are the device's, and
//! this library's spare memory counts as free. The limit applies to whichever device the pod has: a pod sees only the one of its
//! slot.

use super::account::{Account, Kind};

/// The pod's view of its device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Memory available to the pod's programs.
    pub total: u64,
    /// Memory that can still be allocated.
    pub free: u64,
}

/// Returns the view for a limit, a context's own memory, the memory of other processes, and the device's own `free` and `total`.
#[must_use]
pub fn reported(
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
    let total = reported_total(limit, residue, total);
    let used = account.of_program().saturating_add(others);
    // Spare memory can be allocated.
    let free = free.saturating_add(account.of(Kind::Spare));
    View {
        total,
        free: total.saturating_sub(used).min(free),
    }
}

/// Returns the device's total memory as reported under a limit, in bytes.
#[must_use]
pub fn reported_total(limit: u64, residue: u64, total: u64) -> u64 {
    if limit == 0 {
        return total;
    }
    limit.min(total).saturating_sub(residue)
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
        let view = reported(&account, 10_000, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (9_500, 6_500));
        // Other processes of the pod hold some.
        assert_eq!(
            reported(&account, 10_000, 500, 6_000, 50_000, 80_000).free,
            500
        );
        assert_eq!(
            reported(&account, 10_000, 500, 9_000, 50_000, 80_000).free,
            0
        );
        // The device itself is nearly full; spare memory can be allocated all the same.
        assert_eq!(reported(&account, 10_000, 500, 0, 50, 80_000).free, 150);
        // Without a limit.
        let view = reported(&account, 0, 500, 0, 50, 80_000);
        assert_eq!((view.total, view.free), (80_000, 150));
        // A limit larger than the device.
        assert_eq!(reported(&account, 10_000, 500, 0, 50, 8_000).total, 7_500);
        // A limit without room for the context.
        let view = reported(&account, 300, 500, 0, 50_000, 80_000);
        assert_eq!((view.total, view.free), (0, 0));
    }
}
