//! The process's account, kept within the limit of its pod.

use crate::host::Host;
use preload_ops::System as _;
use preload_ops::claims;
use std::sync::atomic::Ordering;

use protocol::message::Report;

use super::account::{Account, Kind};
use super::{lock, state, try_lock};
use crate::driver::{Code, OUT_OF_MEMORY};

/// Publishes the account to the agent. Called under the account's lock, so that the last update is the latest.
fn publish(account: &Account) {
    let facts = Host.facts();
    facts.bytes_used.store(account.total(), Ordering::Relaxed);
    facts.bytes_fixed.store(account.fixed(), Ordering::Relaxed);
}

/// Changes the account and publishes it.
fn change<T>(f: impl FnOnce(&mut Account) -> T) -> T {
    let mut account = lock(&state().account);
    let result = f(&mut account);
    publish(&account);
    result
}

/// Reads a snapshot of the account.
pub(super) fn read<T>(f: impl FnOnce(&Account) -> T) -> T {
    f(&lock(&state().account))
}

/// Counts memory if the claim covers it, and returns whether it does.
fn add_if_claimed(kind: Kind, bytes: u64, limit: u64) -> bool {
    change(|account| {
        let is_claimed = account.is_claimed(bytes, limit);
        if is_claimed {
            account.add(kind, bytes);
        }
        is_claimed
    })
}

/// Counts memory that is about to be allocated, claiming more if needed. Returns `false`, without counting or reporting, if the
/// limit does not allow it.
pub(super) fn try_reserve(kind: Kind, bytes: u64) -> bool {
    let limit = Host.process().memory_limit();
    if add_if_claimed(kind, bytes, limit) {
        return true;
    }
    // One request at a time: claims are totals, and two concurrent ones would overwrite each other.
    let _guard = lock(&state().claims);
    loop {
        if add_if_claimed(kind, bytes, limit) {
            return true;
        }
        let Some(wanted) = read(|account| account.claim_for(bytes, limit)) else {
            return false;
        };
        let mut totals = [wanted.ahead, wanted.exact].into_iter();
        let Some(granted) = totals.find(|&total| claims::claim(Host, total)) else {
            return false;
        };
        lock(&state().account).set_claim(granted);
    }
}

/// Counts memory that is about to be allocated, releasing spare memory if needed. Counts and reports a refusal.
pub(super) fn reserve(kind: Kind, bytes: u64) -> Result<(), Code> {
    if try_reserve(kind, bytes) || super::spare::reclaim() && try_reserve(kind, bytes) {
        return Ok(());
    }
    Err(refuse(bytes))
}

/// Counts and reports the refusal of an allocation of `bytes`, and returns the error for the program.
pub(super) fn refuse(bytes: u64) -> Code {
    let refused = &Host.facts().refused_allocations;
    let count = refused.fetch_add(1, Ordering::Relaxed) + 1;
    // Repeated refusals are reported ever more rarely.
    if count.is_power_of_two() {
        Host.report(Report::OutOfMemory(bytes));
    }
    OUT_OF_MEMORY
}

/// Counts memory that is already allocated, within the limit or not. Returns whether it is within the limit.
pub(super) fn force(kind: Kind, bytes: u64) -> bool {
    change(|account| account.add(kind, bytes));
    top_up()
}

/// Sets a kind to the measured amount. Returns whether all memory is within the limit.
pub(super) fn set(kind: Kind, bytes: u64) -> bool {
    change(|account| account.set(kind, bytes));
    return_surplus();
    top_up()
}

/// Raises the claim to the memory held, as far as the agent allows. Returns whether all of it is within the limit.
fn top_up() -> bool {
    let limit = Host.process().memory_limit();
    if read(|account| account.is_claimed(0, limit)) {
        return true;
    }
    // The thread that holds the lock claims for all memory held by then.
    let Some(_guard) = try_lock(&state().claims) else {
        return read(|account| account.total() <= limit);
    };
    let Some(wanted) = read(|account| account.claim_for(0, limit)) else {
        return false;
    };
    let mut totals = [wanted.ahead, wanted.exact].into_iter();
    let granted = totals.find(|&total| claims::claim(Host, total));
    if let Some(total) = granted {
        lock(&state().account).set_claim(total);
    }
    granted.is_some()
}

/// Subtracts released memory.
pub(super) fn release(kind: Kind, bytes: u64) {
    change(|account| account.subtract(kind, bytes));
    return_surplus();
}

/// Counts `bytes` of held memory under the kind `to` instead of `from`. The claim stays as it is.
pub(super) fn shift(from: Kind, to: Kind, bytes: u64) {
    change(|account| {
        account.subtract(from, bytes);
        account.add(to, bytes);
    });
}

/// Lowers a claim that is largely unused, without waiting for the agent. A thread that is raising the claim now returns the
/// surplus later, at the next free.
fn return_surplus() {
    let limit = Host.process().memory_limit();
    if read(|account| account.surplus(limit)).is_some() {
        lower(|account| account.surplus(limit));
    }
}

/// Returns the whole unused part of the claim, as requested by the agent because another process of the pod was refused. Spare
/// memory is released first.
pub(crate) fn relinquish() {
    if !Host.is_active() {
        return;
    }
    let _given_up = super::spare::give_up();
    if Host.process().memory_limit() > 0 {
        lower(Account::unused);
    }
}

fn lower(to: impl FnOnce(&Account) -> Option<u64>) {
    let Some(_guard) = try_lock(&state().claims) else {
        return;
    };
    let total = {
        let mut account = lock(&state().account);
        let Some(total) = to(&account) else {
            return;
        };
        // The account is lowered before the agent is notified, so that meanwhile less is used than allowed.
        account.set_claim(total);
        total
    };
    claims::lower(Host, total);
}

/// Returns the bytes that other processes of the pod hold now. The value is the agent's last published one if there is no limit,
/// another thread is sending a claim, or no reply comes in time.
pub(super) fn held_by_others() -> u64 {
    // Without a limit the memory of others does not matter.
    if Host.process().memory_limit() > 0
        && let Some(_guard) = try_lock(&state().claims)
    {
        claims::refresh_held_by_others(Host, read(Account::claim));
    }
    claims::held_by_others(Host)
}
