//! The process's account, kept within the limit of its pod.

use std::sync::atomic::Ordering;

use preload_state::counters::note_refusal;
use preload_state::memory::{Account, Kind};

use super::state::{lock, try_lock};
use crate::claims;
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::platform::{Platform, System};
use crate::touch;

/// Publishes the account to the agent. Called under the account's lock, so that the last update is the latest.
fn publish<P: System>(host: P, account: &Account) {
    let facts = host.facts();
    facts.bytes_used.store(account.total(), Ordering::Relaxed);
    facts.bytes_fixed.store(account.fixed(), Ordering::Relaxed);
    for (word, bytes) in facts.fixed.iter().zip(account.fixed_by_reason()) {
        word.store(bytes, Ordering::Relaxed);
    }
}

/// Changes the account and publishes it.
fn change<P: System, T>(host: P, f: impl FnOnce(&mut Account) -> T) -> T {
    let mut account = lock(&host.memory().account);
    let result = f(&mut account);
    publish(host, &account);
    result
}

/// Reads a snapshot of the account.
pub(super) fn read<P: System, T>(host: P, f: impl FnOnce(&Account) -> T) -> T {
    f(&lock(&host.memory().account))
}

/// Counts memory if the claim covers it, and returns whether it does.
fn add_if_claimed<P: Platform>(host: P, kind: Kind, bytes: u64, limit: u64) -> bool {
    change(host, |account| {
        let is_claimed = account.is_claimed(bytes, limit);
        if is_claimed {
            account.add(kind, bytes);
        }
        is_claimed
    })
}

/// Counts memory that is about to be allocated, claiming more if needed. Returns `false`, without counting or reporting, if the
/// limit does not allow it.
pub(super) fn try_reserve<P: Platform>(host: P, kind: Kind, bytes: u64) -> bool {
    let limit = host.process().memory_limit();
    while !add_if_claimed(host, kind, bytes, limit) {
        if !touch::released(host, || claim_more(host, bytes, limit)) {
            return false;
        }
    }
    true
}

/// Claims memory for `bytes` more than what is counted. Returns whether they are claimed.
fn claim_more<P: Platform>(host: P, bytes: u64, limit: u64) -> bool {
    // One request at a time: claims are totals, and two concurrent ones would overwrite each other.
    let _guard = lock(&host.memory().claims);
    read(host, |account| account.is_claimed(bytes, limit)) || claim_total(host, bytes, limit)
}

/// Claims what is counted and `bytes` more, under the lock of the claims. Returns whether the agent grants it.
fn claim_total<P: Platform>(host: P, bytes: u64, limit: u64) -> bool {
    let Some(total) = read(host, |account| account.claim_for(bytes, limit)) else {
        return false;
    };
    let is_granted = claims::claim(host, total);
    if is_granted {
        lock(&host.memory().account).set_claim(total);
    }
    is_granted
}

/// Claims memory that is about to be allocated without counting it: so that the process, which may have to leave itself meanwhile, does not wait for the
/// answer amid an allocation.
pub(super) fn claim_before<P: Platform>(host: P, bytes: u64) {
    let limit = host.process().memory_limit();
    if limit > 0 {
        claim_more(host, bytes, limit);
    }
}

/// Counts and reports the refusal of an allocation of `bytes`, and returns the error for the program.
pub(super) fn refuse<P: Platform>(host: P, bytes: u64) -> Code {
    if let Some(report) = note_refusal(host.facts(), bytes) {
        host.report(report);
    }
    OUT_OF_MEMORY
}

/// Sets kinds to the measured amounts, in bytes. Returns whether all memory is within the limit.
pub(super) fn set<P: Platform>(host: P, measured: &[(Kind, u64)]) -> bool {
    change(host, |account| {
        for &(kind, bytes) in measured {
            account.set(kind, bytes);
        }
    });
    return_surplus(host);
    top_up(host)
}

/// Raises the claim to the memory held, as far as the agent allows. Returns whether all of it is within the limit.
fn top_up<P: Platform>(host: P) -> bool {
    let limit = host.process().memory_limit();
    if read(host, |account| account.is_claimed(0, limit)) {
        return true;
    }
    touch::released(host, || {
        // The thread that holds the lock claims for all memory held by then.
        match try_lock(&host.memory().claims) {
            Some(_guard) => claim_total(host, 0, limit),
            None => read(host, |account| account.total() <= limit),
        }
    })
}

/// Subtracts released memory.
pub(super) fn release<P: Platform>(host: P, kind: Kind, bytes: u64) {
    change(host, |account| account.subtract(kind, bytes));
    return_surplus(host);
}

/// Counts `bytes` of held memory under the kind `to` instead of `from`. The claim stays as it is.
pub(super) fn shift<P: Platform>(host: P, from: Kind, to: Kind, bytes: u64) {
    change(host, |account| {
        account.subtract(from, bytes);
        account.add(to, bytes);
    });
}

/// Lowers a claim that is not used, without waiting for the agent. A thread that is raising the claim now returns the
/// surplus later, at the next free.
fn return_surplus<P: Platform>(host: P) {
    let limit = host.process().memory_limit();
    if read(host, |account| account.unused(limit)).is_some() {
        lower(host, |account| account.unused(limit));
    }
}

/// Lowers the claim to a total that `to` returns, unless another thread is raising it.
pub(super) fn lower<P: Platform>(host: P, to: impl FnOnce(&Account) -> Option<u64>) {
    let Some(_guard) = try_lock(&host.memory().claims) else {
        return;
    };
    let total = {
        let mut account = lock(&host.memory().account);
        let Some(total) = to(&account) else {
            return;
        };
        // The account is lowered before the agent is notified, so that meanwhile less is used than allowed.
        account.set_claim(total);
        total
    };
    claims::lower(host, total);
}

/// Returns the bytes that other processes of the pod hold now. The value is the agent's last published one if there is no limit,
/// another thread is sending a claim, or no reply comes in time.
pub(super) fn held_by_others<P: Platform>(host: P) -> u64 {
    // Without a limit the memory of others does not matter.
    if host.process().memory_limit() > 0
        && let Some(_guard) = try_lock(&host.memory().claims)
    {
        claims::refresh_held_by_others(host, read(host, Account::claim));
    }
    claims::held_by_others(host)
}
