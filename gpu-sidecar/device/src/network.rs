//! Links that share their bandwidth: the lanes of GPUs, the uplinks of PCIe switches, NVLinks, a GPU's own memory.
//!
//! A transfer crosses one or several links. All get as much as the fullest link on their way lets each have, and what
//! one cannot use goes to the others (max-min fairness). Two GPUs behind a PCIe switch that each get B/(1 + s)
//! while both transfer (Torpor, fitted in workloads §9) are two lanes of B behind an uplink of 2B/(1 + s).

use crate::ids::Slab;
use crate::ledger::{Entry, Held, Job, Ledger, ProcessId};
use crate::{Span, Time};

/// Bytes are counted in billionths, so that bytes per second times nanoseconds are whole.
const SCALE: u128 = 1_000_000_000;

/// Links on one way at most: two GPUs behind a switch each.
const LINKS_MAX: usize = 4;

/// A link, by the order in which it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// The links that a transfer crosses, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    links: [LinkId; LINKS_MAX],
    count: u8,
}

impl Route {
    /// Across these links, four at most.
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

    /// Its links.
    #[must_use]
    pub fn links(&self) -> &[LinkId] {
        &self.links[..usize::from(self.count)]
    }
}

#[derive(Clone, Debug)]
struct Link {
    /// Bytes per second.
    capacity: u64,
    /// The transfers that cross it, in the order in which they came.
    transfers: Vec<u32>,
    /// While rates are worked out: it has been looked at, what nobody has been given yet, and how many want of it.
    is_seen: bool,
    free: u64,
    users: u64,
}

#[derive(Clone, Debug)]
struct Transfer {
    job: Job,
    route: Route,
    /// Billionths of bytes that were left at `updated`.
    remaining: u128,
    updated: Time,
    /// Bytes per second.
    rate: u64,
    /// When it ends at this rate.
    ends: Time,
    since: Time,
    /// While rates are worked out: it has been looked at, and what it gets, once that is known.
    is_seen: bool,
    gets: Option<u64>,
}

impl Transfer {
    fn left(&self, now: Time) -> u128 {
        let done = u128::from(self.rate) * u128::from(now.since(self.updated).0);
        self.remaining.saturating_sub(done)
    }

    /// Its end, at this rate from now on.
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

/// How long so many billionths of bytes take.
fn span(billionths: u128, rate: u64) -> Span {
    let span = match u64::try_from(billionths) {
        Ok(billionths) => billionths.div_ceil(rate),
        Err(_) => u64::try_from(billionths.div_ceil(rate.into())).unwrap_or(u64::MAX),
    };
    Span(span)
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Network {
    links: Vec<Link>,
    transfers: Slab<Transfer>,
    /// In the order in which they came.
    active: Vec<u32>,
    /// Links on which a transfer has begun or ended since rates were worked out.
    changed: Vec<u32>,
    /// Transfers whose rates are to be worked out; empty in between.
    open: Vec<u32>,
    now: Time,
    /// When the next transfer ends; never, until rates are worked out anew.
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
    /// A further link. A capacity of zero counts as one byte per second.
    pub fn add(&mut self, bytes_per_second: u64) -> LinkId {
        self.links.push(Link {
            capacity: bytes_per_second.max(1),
            transfers: Vec::new(),
            is_seen: false,
            free: 0,
            users: 0,
        });
        LinkId(u32::try_from(self.links.len() - 1).unwrap_or(u32::MAX))
    }

    /// How many bytes per second each link lets through, by its number.
    pub fn capacities(&self) -> impl Iterator<Item = u64> {
        self.links.iter().map(|link| link.capacity)
    }

    /// A transfer is there. Call [`Network::advance`] to that time before and [`Network::share`] after. Links that there
    /// are not are left out of its way; without any it ends at once. Returns its place, for [`Network::least_end`].
    pub fn start(&mut self, job: Job, bytes: u128, route: Route) -> u32 {
        let is_there = |link: &&LinkId| (link.0 as usize) < self.links.len();
        let is_crossed = route.links().iter().any(|link| is_there(&link));
        let place = self.transfers.insert(Transfer {
            job,
            route,
            remaining: if is_crossed { bytes * SCALE } else { 0 },
            updated: self.now,
            rate: 0,
            ends: Time::NEVER,
            since: self.now,
            is_seen: false,
            gets: None,
        });
        self.active.push(place);
        for link in route.links() {
            if let Some(there) = self.links.get_mut(link.0 as usize) {
                there.transfers.push(place);
                self.changed.push(link.0);
            }
        }
        place
    }

    /// How long bytes take on this way if nothing else is transferred.
    #[must_use]
    pub fn span_alone(&self, bytes: u128, route: Route) -> Span {
        self.rate_alone(route)
            .map_or(Span::ZERO, |rate| span(bytes * SCALE, rate))
    }

    /// The earliest time at which the transfer at this place, as [`Network::start`] told it, can have ended, seen from
    /// `now`: when it ends if there is no other from now on.
    #[must_use]
    pub fn least_end(&self, place: u32, now: Time) -> Time {
        let Some(transfer) = self.transfers.get(place) else {
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
        let there = links.filter_map(|link| self.links.get(link.0 as usize));
        there.map(|link| link.capacity).min()
    }

    /// A process's transfers are dropped, and told. Call [`Network::advance`] to that time before and
    /// [`Network::share`] after.
    pub fn stop(&mut self, process: ProcessId, dropped: &mut Vec<Job>, ledger: &mut Ledger) {
        let is_its = |transfer: &Transfer| transfer.job.process == process;
        self.remove_where(is_its, dropped, ledger);
    }

    /// When the next transfer ends.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        // What would end at the end of time does not end.
        (self.next < Time::NEVER).then_some(self.next)
    }

    /// Goes on to `to`, at most to [`Network::next`]; transfers that have ended by then are added to `ended`. Returns
    /// whether there are any: then [`Network::share`] is to be called.
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

    /// Takes transfers out, and tells of each.
    fn remove_where(
        &mut self,
        goes: impl Fn(&Transfer) -> bool,
        gone: &mut Vec<Job>,
        ledger: &mut Ledger,
    ) {
        self.active.retain(|&place| {
            let Some(transfer) = self.transfers.get(place).filter(|transfer| goes(transfer)) else {
                return true;
            };
            write(self.now, transfer, ledger);
            gone.push(transfer.job);
            for link in transfer.route.links() {
                if let Some(there) = self.links.get_mut(link.0 as usize) {
                    there.transfers.retain(|&other| other != place);
                    self.changed.push(link.0);
                }
            }
            self.transfers.remove(place);
            false
        });
    }

    /// Gives every transfer its rate, from now on: the link that has least for each of those on it is filled first. To be
    /// called once whenever something has changed.
    pub fn share(&mut self, ledger: &mut Ledger) {
        self.find_changed();
        self.fill();
        for link in self.changed.drain(..) {
            self.links[link as usize].is_seen = false;
        }
        self.next = Time::NEVER;
        for &place in &self.active {
            let Some(transfer) = self.transfers.get_mut(place) else {
                continue;
            };
            if transfer.is_seen {
                transfer.is_seen = false;
                let rate = transfer.gets.take().unwrap_or(0);
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

    /// Puts into `open` all transfers whose rates may change, and into `changed` all links they cross: those of the
    /// links that have changed, those of the other links of these, and so on.
    fn find_changed(&mut self) {
        let mut looked_at = 0;
        self.changed.retain(|&link| {
            let link = &mut self.links[link as usize];
            !std::mem::replace(&mut link.is_seen, true)
        });
        while let Some(&link) = self.changed.get(looked_at) {
            looked_at += 1;
            let link = &mut self.links[link as usize];
            (link.free, link.users) = (link.capacity, link.transfers.len() as u64);
            for at in 0..link.transfers.len() {
                let link = &self.links[self.changed[looked_at - 1] as usize];
                let place = link.transfers[at];
                let Some(transfer) = self.transfers.get_mut(place) else {
                    continue;
                };
                if std::mem::replace(&mut transfer.is_seen, true) {
                    continue;
                }
                self.open.push(place);
                for link in transfer.route.links() {
                    if let Some(there) = self.links.get_mut(link.0 as usize)
                        && !std::mem::replace(&mut there.is_seen, true)
                    {
                        self.changed.push(link.0);
                    }
                }
            }
        }
        // In the order of their submission, which places do not tell.
        let work = |place: u32| self.transfers.get(place).map(|transfer| transfer.job.work);
        self.open.sort_unstable_by_key(|&place| work(place));
    }

    /// Works out what each of the `open` transfers gets.
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
            self.open.retain(|&place| {
                let Some(transfer) = self.transfers.get_mut(place) else {
                    return false;
                };
                let links = transfer.route.links();
                if !links.contains(&LinkId(fullest)) {
                    return true;
                }
                let free = |link: &LinkId| self.links.get(link.0 as usize).map(|link| link.free);
                // More transfers than bytes per second: those that came first go first.
                let left = links.iter().filter_map(free).min().unwrap_or(0);
                let gets = rate.max(1).min(left);
                for link in links {
                    if let Some(there) = self.links.get_mut(link.0 as usize) {
                        there.free -= gets;
                        there.users -= 1;
                    }
                }
                transfer.gets = Some(gets);
                false
            });
        }
    }

    /// Writes down what is held at this moment, up to it. Call [`Network::advance`] to that time before.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        for &place in &self.active {
            if let Some(transfer) = self.transfers.get_mut(place) {
                write(self.now, transfer, ledger);
                transfer.since = self.now;
            }
        }
    }
}

/// Writes down what a transfer has held until now.
fn write(now: Time, transfer: &Transfer, ledger: &mut Ledger) {
    for link in transfer.route.links() {
        ledger.add(Entry {
            held: Held::Link { link: link.0 },
            process: transfer.job.process,
            work: Some(transfer.job.work),
            amount: transfer.rate,
            from: transfer.since,
            to: now,
        });
    }
}
