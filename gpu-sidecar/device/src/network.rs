//! Links with shared bandwidth: host links of GPUs, uplinks of PCIe switches, NVLinks, and a GPU's own memory.
//!
//! A transfer crosses one or several links. Each transfer gets an equal share of the most contended link on its route, and
//! bandwidth that one cannot use goes to the others (max-min fairness). Two GPUs behind a PCIe switch which each get B/(1 + s)
//! while both transfer (Torpor, fitted in workloads §9) are modelled as two links of B behind an uplink of 2B/(1 + s).

use crate::ids::Slab;
use crate::ledger::{Entry, Job, Ledger, ProcessId, Resource};
use crate::{Span, Time};

/// Bytes are counted in billionths, so that bytes per second times nanoseconds are whole.
const SCALE: u128 = 1_000_000_000;

/// Largest number of links on a route: between two GPUs, each behind a switch.
const LINKS_MAX: usize = 4;

/// Index of a link, in the order of addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Links that a transfer crosses, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    links: [LinkId; LINKS_MAX],
    count: u8,
}

impl Route {
    /// Creates a route across these links, four at most.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "four at most")]
    pub fn new<const N: usize>(links: [LinkId; N]) -> Self {
        const { assert!(N <= LINKS_MAX) };
        let mut all = [LinkId(0); LINKS_MAX];
        all[..N].copy_from_slice(&links);
        Self {
            links: all,
            count: N as u8,
        }
    }

    /// Returns the links of the route.
    #[must_use]
    pub fn links(&self) -> &[LinkId] {
        &self.links[..usize::from(self.count)]
    }
}

/// Link and the transfers that share it.
#[derive(Clone, Debug)]
struct Link {
    /// Bandwidth in bytes per second.
    capacity: u64,
    /// Slots of the transfers that cross it, in order of arrival.
    transfers: Vec<u32>,
    /// State while rates are computed: whether the link was visited, its unassigned bytes per second, and the number of transfers
    /// without a rate.
    is_visited: bool,
    free: u64,
    users: u64,
}

/// Transfer in progress.
#[derive(Clone, Debug)]
struct Transfer {
    job: Job,
    route: Route,
    /// Remaining billionths of bytes at `updated`.
    remaining: u128,
    updated: Time,
    /// Assigned bytes per second.
    rate: u64,
    /// End at this rate.
    ends: Time,
    since: Time,
    /// State while rates are computed: whether the transfer was visited, and its new rate once it is known.
    is_visited: bool,
    assigned: Option<u64>,
}

impl Transfer {
    fn left(&self, now: Time) -> u128 {
        let done = u128::from(self.rate) * u128::from(now.since(self.updated).0);
        self.remaining.saturating_sub(done)
    }

    /// Returns the time at which the transfer ends if its rate stays the same from `now` on.
    fn end(&self, now: Time) -> Time {
        if self.remaining == 0 {
            return now;
        }
        if self.rate == 0 {
            return Time::NEVER;
        }
        now.after(span(self.remaining, self.rate))
    }
}

/// Returns the time that this many billionths of bytes take, rounded up.
fn span(billionths: u128, rate: u64) -> Span {
    let span = match u64::try_from(billionths) {
        Ok(billionths) => billionths.div_ceil(rate),
        Err(_) => u64::try_from(billionths.div_ceil(rate.into())).unwrap_or(u64::MAX),
    };
    Span(span)
}

/// Links of a node, and the transfers that share their bandwidth; see the [module](self).
#[derive(Clone, Debug)]
pub struct Network {
    links: Vec<Link>,
    transfers: Slab<Transfer>,
    /// Slots of all transfers, in order of arrival.
    active: Vec<u32>,
    /// Links on which a transfer has begun or ended since rates were computed.
    changed: Vec<u32>,
    /// Transfers without a new rate while rates are computed; otherwise empty.
    open: Vec<u32>,
    now: Time,
    /// Time of the next end of a transfer; [`Time::NEVER`] until rates are computed again.
    next: Time,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            transfers: Slab::default(),
            active: Vec::new(),
            changed: Vec::new(),
            open: Vec::new(),
            now: Time::ZERO,
            next: Time::NEVER,
        }
    }
}

impl Network {
    /// Adds a link. A bandwidth of zero counts as one byte per second.
    pub fn add(&mut self, bytes_per_second: u64) -> LinkId {
        self.links.push(Link {
            capacity: bytes_per_second.max(1),
            transfers: Vec::new(),
            is_visited: false,
            free: 0,
            users: 0,
        });
        LinkId(u32::try_from(self.links.len() - 1).unwrap_or(u32::MAX))
    }

    /// Returns the bandwidth of each link in bytes per second, by its index.
    pub fn capacities(&self) -> impl Iterator<Item = u64> {
        self.links.iter().map(|link| link.capacity)
    }

    /// Starts a transfer. [`Network::advance`] must be called for the current time before, and [`Network::share`] after. Links
    /// that do not exist are ignored; a transfer without links ends at once. Returns its slot, for [`Network::earliest_end`].
    pub fn start(&mut self, job: Job, bytes: u128, route: Route) -> u32 {
        let exists = |link: &&LinkId| (link.0 as usize) < self.links.len();
        let is_crossed = route.links().iter().any(|link| exists(&link));
        let slot = self.transfers.insert(Transfer {
            job,
            route,
            remaining: if is_crossed { bytes * SCALE } else { 0 },
            updated: self.now,
            rate: 0,
            ends: Time::NEVER,
            since: self.now,
            is_visited: false,
            assigned: None,
        });
        self.active.push(slot);
        for link in route.links() {
            if let Some(crossed) = self.links.get_mut(link.0 as usize) {
                crossed.transfers.push(slot);
                self.changed.push(link.0);
            }
        }
        slot
    }

    /// Returns the time that `bytes` take on this route without other transfers.
    #[must_use]
    pub fn span_alone(&self, bytes: u128, route: Route) -> Span {
        self.rate_alone(route)
            .map_or(Span::ZERO, |rate| span(bytes * SCALE, rate))
    }

    /// Returns the earliest possible end of the transfer in this slot, from [`Network::start`], as seen from `now`: its end
    /// without other transfers from now on.
    #[must_use]
    pub fn earliest_end(&self, slot: u32, now: Time) -> Time {
        let Some(transfer) = self.transfers.get(slot) else {
            return now;
        };
        match self.rate_alone(transfer.route) {
            None => now,
            Some(rate) if rate == transfer.rate => transfer.ends,
            Some(rate) => now.after(span(transfer.left(now), rate)),
        }
    }

    fn rate_alone(&self, route: Route) -> Option<u64> {
        let links = route.links().iter();
        let crossed = links.filter_map(|link| self.links.get(link.0 as usize));
        crossed.map(|link| link.capacity).min()
    }

    /// Drops the transfers of a process and appends them to `dropped`. [`Network::advance`] must be called for the current time
    /// before, and [`Network::share`] after.
    pub fn stop(&mut self, process: ProcessId, dropped: &mut Vec<Job>, ledger: &mut Ledger) {
        let is_its = |transfer: &Transfer| transfer.job.process == process;
        self.remove_where(is_its, dropped, ledger);
    }

    /// Returns the time at which the next transfer ends; `None` if there is none.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        // Transfers that would end at the end of time never end.
        (self.next < Time::NEVER).then_some(self.next)
    }

    /// Advances the time to `to`, at most to [`Network::next`]. Transfers that end by then are appended to `ended`. Returns
    /// whether there are any, in which case [`Network::share`] has to be called.
    pub fn advance(&mut self, to: Time, ended: &mut Vec<Job>, ledger: &mut Ledger) -> bool {
        self.now = self.now.max(to);
        if self.next > self.now || self.next == Time::NEVER {
            return false;
        }
        self.next = Time::NEVER;
        let now = self.now;
        self.remove_where(|transfer| transfer.ends <= now, ended, ledger);
        true
    }

    /// Removes the transfers for which `matches` returns true: writes them to the ledger, appends their jobs to `gone`, and marks
    /// their links as changed.
    fn remove_where(
        &mut self,
        matches: impl Fn(&Transfer) -> bool,
        gone: &mut Vec<Job>,
        ledger: &mut Ledger,
    ) {
        self.active.retain(|&slot| {
            let Some(transfer) = self
                .transfers
                .get(slot)
                .filter(|transfer| matches(transfer))
            else {
                return true;
            };
            write(self.now, transfer, ledger);
            gone.push(transfer.job);
            for link in transfer.route.links() {
                if let Some(crossed) = self.links.get_mut(link.0 as usize) {
                    crossed.transfers.retain(|&other| other != slot);
                    self.changed.push(link.0);
                }
            }
            self.transfers.remove(slot);
            false
        });
    }

    /// Assigns every transfer its rate from now on, filling the link with the smallest share per transfer first. To be called
    /// once after any change.
    pub fn share(&mut self, ledger: &mut Ledger) {
        self.find_changed();
        self.fill();
        for link in self.changed.drain(..) {
            self.links[link as usize].is_visited = false;
        }
        self.next = Time::NEVER;
        for &slot in &self.active {
            let Some(transfer) = self.transfers.get_mut(slot) else {
                continue;
            };
            if transfer.is_visited {
                transfer.is_visited = false;
                let rate = transfer.assigned.take().unwrap_or(0);
                if transfer.rate != rate {
                    write(self.now, transfer, ledger);
                    transfer.since = self.now;
                    transfer.remaining = transfer.left(self.now);
                    (transfer.updated, transfer.rate) = (self.now, rate);
                }
                transfer.ends = transfer.end(transfer.updated);
            }
            if transfer.rate == 0 && transfer.remaining == 0 {
                transfer.ends = self.now;
            }
            self.next = self.next.min(transfer.ends);
        }
    }

    /// Collects in `open` all transfers whose rates may change, and in `changed` all links they cross: those of the changed
    /// links, those of the further links which these cross, and so on.
    fn find_changed(&mut self) {
        let mut visited = 0;
        self.changed.retain(|&link| {
            let link = &mut self.links[link as usize];
            !std::mem::replace(&mut link.is_visited, true)
        });
        while let Some(&link) = self.changed.get(visited) {
            visited += 1;
            let link = &mut self.links[link as usize];
            (link.free, link.users) = (link.capacity, link.transfers.len() as u64);
            for at in 0..link.transfers.len() {
                let link = &self.links[self.changed[visited - 1] as usize];
                let slot = link.transfers[at];
                let Some(transfer) = self.transfers.get_mut(slot) else {
                    continue;
                };
                if std::mem::replace(&mut transfer.is_visited, true) {
                    continue;
                }
                self.open.push(slot);
                for link in transfer.route.links() {
                    if let Some(crossed) = self.links.get_mut(link.0 as usize)
                        && !std::mem::replace(&mut crossed.is_visited, true)
                    {
                        self.changed.push(link.0);
                    }
                }
            }
        }
        // In the order of submission, which slots do not preserve.
        let work = |slot: u32| self.transfers.get(slot).map(|transfer| transfer.job.work);
        self.open.sort_unstable_by_key(|&slot| work(slot));
    }

    /// Computes the rates of the `open` transfers.
    fn fill(&mut self) {
        while !self.open.is_empty() {
            let each = self
                .changed
                .iter()
                .map(|&at| (&self.links[at as usize], at));
            let each = each
                .filter(|(link, _)| link.users > 0)
                .map(|(link, at)| (link.free / link.users, at));
            let Some((rate, fullest)) = each.min() else {
                self.open.clear();
                return;
            };
            self.open.retain(|&slot| {
                let Some(transfer) = self.transfers.get_mut(slot) else {
                    return false;
                };
                let links = transfer.route.links();
                if !links.contains(&LinkId(fullest)) {
                    return true;
                }
                let free = |link: &LinkId| self.links.get(link.0 as usize).map(|link| link.free);
                // With more transfers than bytes per second, the earliest ones get a rate.
                let left = links.iter().filter_map(free).min().unwrap_or(0);
                let assigned = rate.max(1).min(left);
                for link in links {
                    if let Some(crossed) = self.links.get_mut(link.0 as usize) {
                        crossed.free -= assigned;
                        crossed.users -= 1;
                    }
                }
                transfer.assigned = Some(assigned);
                false
            });
        }
    }

    /// Adds ledger entries for all bandwidth held now, ending now. [`Network::advance`] must be called for the current time
    /// before.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        for &slot in &self.active {
            if let Some(transfer) = self.transfers.get_mut(slot) {
                write(self.now, transfer, ledger);
                transfer.since = self.now;
            }
        }
    }
}

/// Adds ledger entries for the bandwidth that a transfer has held until now.
fn write(now: Time, transfer: &Transfer, ledger: &mut Ledger) {
    for link in transfer.route.links() {
        ledger.add(Entry {
            resource: Resource::Link { link: link.0 },
            process: transfer.job.process,
            work: Some(transfer.job.work),
            amount: transfer.rate,
            from: transfer.since,
            to: now,
        });
    }
}
