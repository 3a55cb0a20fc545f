//! The process's account, held against the limit of its pod.

use std::sync::atomic::Ordering;

use protocol::message::Report;

use super::account::{Account, Kind};
use super::{lock, state, try_lock};
use crate::driver::{Code, OUT_OF_MEMORY};
use crate::{claims, link};

/// Tells the agent how the account stands. Under the account's lock, so that the last word is the latest.
fn publish(account: &Account) {
    let facts = link::facts();
    facts.bytes_used.store(account.total(), Ordering::Relaxed);
    facts.bytes_fixed.store(account.fixed(), Ordering::Relaxed);
}

/// Makes a change of the account known.
fn change<T>(how: impl FnOnce(&mut Account) -> T) -> T {
    let mut account = lock(&state().account);
    let answer = how(&mut account);
    publish(&account);
    answer
}

/// The account at this moment.
pub(super) fn read<T>(how: impl FnOnce(&Account) -> T) -> T {
    how(&lock(&state().account))
}

fn add_if_claimed(kind: Kind, bytes: u64, limit: u64) -> bool {
    change(|account| {
        let is_claimed = account.is_claimed(bytes, limit);
        if is_claimed {
            account.add(kind, bytes);
        }
        is_claimed
    })
}

/// Counts memory that is about to be made, if the limit allows it. Nothing is counted otherwise, and nobody told.
pub(super) fn try_reserve(kind: Kind, bytes: u64) -> bool {
    let limit = link::memory_limit();
    if add_if_claimed(kind, bytes, limit) {
        return true;
    }
    // One question at a time: claims are totals, and two that cross would undo each other.
    let _one_at_a_time = lock(&state().claims);
    loop {
        if add_if_claimed(kind, bytes, limit) {
            return true;
        }
        let Some(ask) = read(|account| account.ask(bytes, limit)) else {
            return false;
        };
        let mut totals = [ask.ahead, ask.exact].into_iter();
        let Some(granted) = totals.find(|&total| claims::claim(total)) else {
            return false;
        };
        lock(&state().account).claimed(granted);
    }
}

/// Counts memory that is about to be made. What lies idle is given up before it is refused, and who refuses, says so.
pub(super) fn reserve(kind: Kind, bytes: u64) -> Result<(), Code> {
    if try_reserve(kind, bytes) || super::spare::reclaim() && try_reserve(kind, bytes) {
        return Ok(());
    }
    Err(refuse(bytes))
}

/// An allocation of so many bytes is refused because of the limit.
pub(super) fn refuse(bytes: u64) -> Code {
    let refused = &link::facts().refused_allocations;
    let count = refused.fetch_add(1, Ordering::Relaxed) + 1;
    // A program that tries again and again is told of ever more rarely.
    if count.is_power_of_two() {
        link::report(Report::OutOfMemory(bytes));
    }
    OUT_OF_MEMORY
}

/// Counts memory that is there already, within the limit or not. Whether it is.
pub(super) fn force(kind: Kind, bytes: u64) -> bool {
    change(|account| account.add(kind, bytes));
    top_up()
}

/// A kind of memory was measured. Whether all is within the limit.
pub(super) fn set(kind: Kind, bytes: u64) -> bool {
    change(|account| account.set(kind, bytes));
    give_surplus_back();
    top_up()
}

/// Claims what is held beyond the claim, as far as that can be had.
fn top_up() -> bool {
    let limit = link::memory_limit();
    if read(|account| account.is_claimed(0, limit)) {
        return true;
    }
    // Whoever is asking just now asks for all that is held by then.
    let Some(_one_at_a_time) = try_lock(&state().claims) else {
        return read(|account| account.total() <= limit);
    };
    let Some(ask) = read(|account| account.ask(0, limit)) else {
        return false;
    };
    let mut totals = [ask.ahead, ask.exact].into_iter();
    let granted = totals.find(|&total| claims::claim(total));
    if let Some(total) = granted {
        lock(&state().account).claimed(total);
    }
    granted.is_some()
}

/// Memory is gone.
pub(super) fn give(kind: Kind, bytes: u64) {
    change(|account| account.subtract(kind, bytes));
    give_surplus_back();
}

/// Memory is used for something else now.
pub(super) fn shift(from: Kind, to: Kind, bytes: u64) {
    change(|account| {
        account.subtract(from, bytes);
        account.add(to, bytes);
    });
}

/// Gives back a claim of which much is not used. Not waited for: who asks for more at this moment gives back afterwards, at
/// the next free.
fn give_surplus_back() {
    let limit = link::memory_limit();
    if read(|account| account.surplus(limit)).is_some() {
        lower(|account| account.surplus(limit));
    }
}

/// Gives back all of the claim that is not used: the agent has asked for it, since another process of the pod was refused.
/// Memory that lies idle is given up first.
pub(crate) fn relinquish() {
    if !link::is_active() {
        return;
    }
    let _given_up = super::spare::give_up();
    if link::memory_limit() > 0 {
        lower(Account::unused);
    }
}

fn lower(to: impl FnOnce(&Account) -> Option<u64>) {
    let Some(_one_at_a_time) = try_lock(&state().claims) else {
        return;
    };
    let total = {
        let mut account = lock(&state().account);
        let Some(total) = to(&account) else {
            return;
        };
        // First here, then there: in between, less is used than may be.
        account.claimed(total);
        total
    };
    claims::lower(total);
}

/// What other processes of the pod hold at this moment, in bytes; as it was when the agent last looked, where there is no limit,
/// another thread asks the agent for more, or no answer comes in time.
pub(super) fn others() -> u64 {
    // Without a limit nobody has less for what others hold.
    if link::memory_limit() > 0
        && let Some(_one_at_a_time) = try_lock(&state().claims)
    {
        claims::count_others(read(Account::claim));
    }
    claims::others()
}
