//! Links that share their bandwidth: the lanes of GPUs, the uplinks of PCIe switches, NVLinks.
//!
//! A transfer crosses one or several links. All get as much as the fullest link on their way lets each have, and what
//! one cannot use goes to the others (max-min fairness). Two GPUs behind a PCIe switch that each get B/(1 + s)
//! while both transfer (Torpor, fitted in workloads §9) are two lanes of B behind an uplink of 2B/(1 + s).

use crate::ledger::{Entry, Held, Ledger, ProcessId, WorkId};
use crate::{Span, Time};

/// Bytes are counted in billionths, so that bytes per second times nanoseconds are whole.
const SCALE: u128 = 1_000_000_000;

/// A link, by the order in which it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

#[derive(Clone, Debug)]
struct Transfer {
    id: WorkId,
    process: ProcessId,
    way: Vec<usize>,
    /// Billionths of bytes.
    remaining: u128,
    /// Bytes per second.
    rate: u64,
    since: Time,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Bytes per second, by link.
    capacities: Vec<u64>,
    transfers: Vec<Transfer>,
    now: Time,
}

impl Network {
    /// A further link. A capacity of zero counts as one byte per second.
    pub fn add(&mut self, bytes_per_second: u64) -> LinkId {
        self.capacities.push(bytes_per_second.max(1));
        LinkId(u32::try_from(self.capacities.len() - 1).unwrap_or(u32::MAX))
    }

    /// A transfer is there. Call [`Network::advance`] to that time before and [`Network::share`] after. Links that there
    /// are not are left out of its way; without any it has ended with the next [`Network::advance`].
    pub fn start(&mut self, id: WorkId, process: ProcessId, bytes: u64, way: &[LinkId]) {
        let mut links: Vec<_> = way.iter().map(|link| link.0 as usize).collect();
        links.retain(|&link| link < self.capacities.len());
        let remaining = if links.is_empty() {
            0
        } else {
            u128::from(bytes) * SCALE
        };
        self.transfers.push(Transfer {
            id,
            process,
            way: links,
            remaining,
            rate: 0,
            since: self.now,
        });
    }

    /// A process is gone, and its transfers with it. Call [`Network::advance`] to that time before and
    /// [`Network::share`] after.
    pub fn dismiss(&mut self, process: ProcessId, ledger: &mut Ledger) {
        let is_its = |transfer: &&Transfer| transfer.process == process;
        for transfer in self.transfers.iter().filter(is_its) {
            self.write(transfer, ledger);
        }
        self.transfers
            .retain(|transfer| transfer.process != process);
    }

    /// When the next transfer ends.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let ends = self.transfers.iter().map(|transfer| self.end_of(transfer));
        // What would end at the end of time does not end.
        ends.filter(|end| *end < Time::NEVER).min()
    }

    /// Goes on to `to`, at most to [`Network::next`]; transfers that have ended by then are added to `ended`.
    pub fn advance(&mut self, to: Time, ended: &mut Vec<WorkId>, ledger: &mut Ledger) {
        let elapsed = u128::from(to.since(self.now).0);
        self.now = self.now.max(to);
        for transfer in &mut self.transfers {
            let done = u128::from(transfer.rate) * elapsed;
            transfer.remaining = transfer.remaining.saturating_sub(done);
        }
        for transfer in self
            .transfers
            .iter()
            .filter(|transfer| transfer.remaining == 0)
        {
            self.write(transfer, ledger);
            ended.push(transfer.id);
        }
        self.transfers.retain(|transfer| transfer.remaining > 0);
    }

    fn end_of(&self, transfer: &Transfer) -> Time {
        let left = transfer
            .remaining
            .div_ceil(u128::from(transfer.rate.max(1)));
        self.now
            .after(Span(u64::try_from(left).unwrap_or(u64::MAX)))
    }

    /// Gives every transfer its rate, from now on: the link that has least for each of those on it is filled first. To be
    /// called once whenever something has changed.
    pub fn share(&mut self, ledger: &mut Ledger) {
        let mut rates = vec![0; self.transfers.len()];
        let mut free = self.capacities.clone();
        let mut open: Vec<_> = (0..self.transfers.len())
            .filter(|&n| !self.transfers[n].way.is_empty())
            .collect();
        while !open.is_empty() {
            let mut users = vec![0_u64; free.len()];
            for &n in &open {
                for &link in &self.transfers[n].way {
                    users[link] += 1;
                }
            }
            let each = (0..free.len())
                .filter(|&link| users[link] > 0)
                .map(|link| (free[link] / users[link], link));
            let Some((rate, fullest)) = each.min() else {
                break;
            };
            open.retain(|&n| {
                if !self.transfers[n].way.contains(&fullest) {
                    return true;
                }
                rates[n] = rate.max(1);
                for &link in &self.transfers[n].way {
                    free[link] -= rate;
                }
                false
            });
        }
        for (at, rate) in rates.into_iter().enumerate() {
            if self.transfers[at].rate != rate {
                self.write(&self.transfers[at], ledger);
                (self.transfers[at].rate, self.transfers[at].since) = (rate, self.now);
            }
        }
    }

    /// Writes down what is held at this moment, up to it.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        for at in 0..self.transfers.len() {
            self.write(&self.transfers[at], ledger);
            self.transfers[at].since = self.now;
        }
    }

    /// Writes down what a transfer has held until now.
    fn write(&self, transfer: &Transfer, ledger: &mut Ledger) {
        for &link in &transfer.way {
            ledger.add(Entry {
                held: Held::Link {
                    link: u32::try_from(link).unwrap_or(u32::MAX),
                },
                process: transfer.process,
                work: Some(transfer.id),
                amount: transfer.rate,
                from: transfer.since,
                to: self.now,
            });
        }
    }
}
