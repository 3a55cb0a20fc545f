//! Groups of independent nodes are simulated in turns, a block of time each, instead of event by event.
//!
//! A node depends on another node only where both serve a function, with requests routed to the less loaded of the two. Nodes
//! connected in this way, directly or over others, form a *group*; events in one group do not affect another. A
//! run therefore reads a block of arrivals, and each group is advanced alone through the time that the block covers, so that the
//! state of its functions stays in the processor's cache from one request to the next. Results are bit for bit those of
//! processing all events in the order of time.
//!
//! Memory: a block has [`PER_FUNCTION`] arrivals for each function, and those at the last one's instant.

use policy::Time;

use super::run::{Event, Run};
use super::state::Function;
use crate::agenda::Agenda;
use crate::traces::{Arrival, TraceError};

/// Arrivals in a block for each function. Each group's data is fetched once per block, so a larger block costs less for each
/// arrival; the gain beyond this value is too small to measure.
const PER_FUNCTION: usize = 4;
/// Least number of arrivals in a block, however few functions there are.
const ARRIVALS_MIN: usize = 4_096;

/// Group of each function; `None` for a function without a node.
#[derive(Debug)]
pub(super) struct Groups {
    count: usize,
    of_function: Vec<Option<u32>>,
}

impl Groups {
    pub(super) fn new(functions: &[Function], nodes: u32) -> Self {
        let pairs = functions.iter().filter_map(|own| match own.places {
            [Some((one, _)), Some((other, _))] => Some((one, other)),
            _ => None,
        });
        let mut leads = leads(nodes, pairs);
        let mut count = 0;
        let mut numbers = vec![0; leads.len()];
        for node in 0..nodes {
            let leader = leader(&mut leads, node);
            numbers[node as usize] = if leader == node {
                count += 1;
                count - 1
            } else {
                numbers[leader as usize]
            };
        }
        let of = |own: &Function| own.places[0].map(|(node, _)| numbers[node as usize]);
        Self {
            count: (count as usize).max(1),
            of_function: functions.iter().map(of).collect(),
        }
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }
}

/// Returns a union-find forest: each node points to a node of its group with a smaller number, or to itself if it is the
/// first.
fn leads(nodes: u32, pairs: impl Iterator<Item = (u32, u32)>) -> Vec<u32> {
    let mut leads: Vec<u32> = (0..nodes).collect();
    for (one, other) in pairs {
        let (one, other) = (leader(&mut leads, one), leader(&mut leads, other));
        leads[one.max(other) as usize] = one.min(other);
    }
    leads
}

fn leader(leads: &mut [u32], mut node: u32) -> u32 {
    while leads[node as usize] != node {
        // Path halving.
        leads[node as usize] = leads[leads[node as usize] as usize];
        node = leads[node as usize];
    }
    node
}

/// Arrivals, read block by block.
#[derive(Debug)]
pub(super) struct Blocks<A> {
    arrivals: A,
    next: Option<Arrival>,
    groups: Groups,
    /// Arrivals of the current block that their group has not processed yet, in order, by the number of the group.
    of_group: Vec<Vec<Arrival>>,
    /// Arrival times of those requests of the current block that have a node, in order.
    times: Vec<Time>,
    size: usize,
}

impl<A: Iterator<Item = Result<Arrival, TraceError>>> Blocks<A> {
    pub(super) fn new(mut arrivals: A, groups: Groups) -> Result<Self, TraceError> {
        let next = arrivals.next().transpose()?;
        let size = groups.of_function.len().saturating_mul(PER_FUNCTION);
        Ok(Self {
            arrivals,
            next,
            of_group: vec![Vec::new(); groups.count],
            groups,
            times: Vec::new(),
            size: size.max(ARRIVALS_MIN),
        })
    }

    /// Reads the next block of arrivals before `to` and returns the time before which it is complete: events before that time
    /// can be processed with it. The previous block must have been drained.
    fn read(&mut self, to: Time) -> Result<Time, TraceError> {
        self.times.clear();
        let (mut count, mut last) = (0, Time::ZERO);
        while let Some(arrival) = self.next {
            let is_full = count >= self.size && last < arrival.at;
            if is_full || arrival.at >= to {
                return Ok(arrival.at.min(to));
            }
            (count, last) = (count + 1, arrival.at);
            let group = self.groups.of_function[arrival.function as usize];
            if group.is_some() {
                self.times.push(arrival.at);
            }
            // Requests without a node are refused, so any group can process them.
            self.of_group[group.unwrap_or_default() as usize].push(arrival);
            self.next = self.arrivals.next().transpose()?;
        }
        Ok(to)
    }
}

impl Run<'_> {
    /// Advances one group after another through the time of each block and returns the end of the last block. A run stops only
    /// at the end of a block, so that all groups are at the same time.
    pub(super) fn take_turns<A>(
        &mut self,
        mut blocks: Blocks<A>,
        watch: &mut dyn FnMut(u64, Time) -> bool,
    ) -> Result<Time, TraceError>
    where
        A: Iterator<Item = Result<Arrival, TraceError>>,
    {
        let mut agendas: Vec<Agenda<Event>> = Vec::new();
        agendas.resize_with(blocks.of_group.len(), Agenda::new);
        let mut in_flight = InFlight::default();
        let mut left = Vec::new();
        let (mut begin, mut continues) = (Time::ZERO, true);
        while continues && begin < self.span.to {
            let until = blocks.read(self.span.to)?;
            let kept = self.outcome.taken.len();
            self.left = Some(left);
            for (agenda, arrivals) in agendas.iter_mut().zip(&mut blocks.of_group) {
                self.keep = self
                    .outcome
                    .taken
                    .len()
                    .saturating_add(self.span.keep - kept);
                std::mem::swap(&mut self.agenda, agenda);
                self.elsewhere -= self.agenda.taken();
                let own = arrivals.drain(..).map(Ok);
                self.pass(own, until, &mut |events, _| {
                    continues &= watch(events, begin);
                    true
                })?;
                self.elsewhere += self.agenda.taken();
                std::mem::swap(&mut self.agenda, agenda);
            }
            left = self.left.take().unwrap_or_default();
            self.outcome.in_flight_max = in_flight.pass(&blocks.times, &mut left);
            self.outcome.taken[kept..].sort_by_key(|taken| taken.to);
            self.outcome.taken.truncate(self.span.keep);
            begin = until;
        }
        self.outcome.stopped = !continues;
        Ok(begin)
    }
}

/// Counts requests in flight from arrival and departure times, where groups report them one after the other.
#[derive(Debug, Default)]
struct InFlight {
    now: u64,
    max: u64,
}

impl InFlight {
    /// Processes the times of another block, with `came` in order, and returns the maximum so far. A request that leaves at the
    /// instant of an arrival counts as in flight at that instant.
    fn pass(&mut self, came: &[Time], left: &mut Vec<Time>) -> u64 {
        left.sort_unstable();
        let mut gone = left.iter().peekable();
        for at in came {
            while gone.next_if(|left| *left < at).is_some() {
                self.now -= 1;
            }
            self.now += 1;
            self.max = self.max.max(self.now);
        }
        gone.for_each(|_| self.now -= 1);
        left.clear();
        self.max
    }
}

#[cfg(test)]
mod tests {
    use policy::Span;

    use super::*;
    use crate::generate::{generate, preset};
    use crate::node::{CountedSpan, Hardware, Hops, Settings};
    use crate::random::{Purpose, Streams};
    use crate::rules::RuleName;

    fn counted() -> CountedSpan {
        let second = |n| Time::ZERO.after(Span::from_secs(n));
        CountedSpan {
            from: second(2),
            to: second(40),
            keep: 5_000,
        }
    }

    /// Returns the results of a run, formatted for comparison, with rates scaled to a sum of `per_minute`, in turns or with all
    /// events in the order of time; and the number of groups.
    fn results(
        settings: &Settings,
        functions: u32,
        per_minute: f64,
        in_turns: bool,
    ) -> (String, usize) {
        let mut hardware = Hardware::torpor();
        hardware.node.slots = 1;
        hardware.node.pairs.clear();
        hardware.node.links.clear();
        let mut spec = preset("torpor-node").unwrap().spec();
        spec.functions = functions;
        spec.total_per_minute = Some(per_minute);
        let workload = generate(&spec).unwrap();
        let streams = Streams::new(&spec.experiment, spec.seed);
        let span = counted();
        let mut run = Run::new(&hardware, settings, &workload, span, &streams).unwrap();
        let groups = Groups::new(&run.functions, settings.nodes);
        let count = groups.count();
        if in_turns {
            let blocks = Blocks::new(workload.arrivals, groups).unwrap();
            let end = run.take_turns(blocks, &mut |_, _| true).unwrap();
            assert_eq!(end, span.to);
        } else {
            run.pass(workload.arrivals, span.to, &mut |_, _| true)
                .unwrap();
        }
        (format!("{:?}", run.end(span.to)), count)
    }

    #[test]
    fn turns_do_not_change_results() {
        let mut counts = Vec::new();
        let mut stream = Streams::new("groups", 1).stream(Purpose::Noise, 0);
        for (number, rule) in RuleName::ALL.into_iter().enumerate() {
            let mut settings = rule.settings();
            settings.nodes = 7;
            if number % 2 == 1 {
                settings.hops = Hops {
                    there: Span::from_millis(1),
                    back: Span::from_millis(2),
                };
            }
            // Up to overload, so that some functions have two nodes.
            let per_minute = stream.uniform(4_000.0, 16_000.0);
            let (expected, count) = results(&settings, 90, per_minute, false);
            let (found, _) = results(&settings, 90, per_minute, true);
            assert!(expected == found, "{rule:?}");
            counts.push(count);
        }
        counts.sort_unstable();
        let (least, most) = (counts[0], counts[counts.len() - 1]);
        assert!(least < most && most > 1, "{counts:?}");
    }

    /// Compares the groups with the connected components found by propagating the least number.
    #[test]
    fn groups_are_the_connected_components_of_nodes_that_share_functions() {
        let mut stream = Streams::new("groups", 2).stream(Purpose::Noise, 0);
        for _ in 0..300 {
            let mut below = |bound: u32| u32::try_from(stream.bits() % u64::from(bound)).unwrap();
            let nodes = 1 + below(12);
            let mut node = || below(nodes);
            let pairs: Vec<(u32, u32)> = (0..node()).map(|_| (node(), node())).collect();
            let mut leads = leads(nodes, pairs.iter().copied());
            let mut least: Vec<u32> = (0..nodes).collect();
            for _ in 0..nodes {
                for &(one, other) in &pairs {
                    let (one, other) = (one as usize, other as usize);
                    let both = least[one].min(least[other]);
                    (least[one], least[other]) = (both, both);
                }
            }
            let found: Vec<u32> = (0..nodes).map(|node| leader(&mut leads, node)).collect();
            assert_eq!(found, least, "{pairs:?}");
        }
    }

    #[test]
    fn a_run_that_is_stopped_ends_all_groups_at_the_same_time() {
        let hardware = Hardware::torpor();
        let mut settings = RuleName::Adaptive.settings();
        settings.nodes = 3;
        let mut spec = preset("torpor-node").unwrap().spec();
        spec.functions = 600;
        let workload = generate(&spec).unwrap();
        let streams = Streams::new(&spec.experiment, spec.seed);
        let span = CountedSpan {
            to: Time::ZERO.after(Span::from_secs(100_000)),
            ..counted()
        };
        let watch = &mut |_, _| false;
        let outcome = crate::node::run(&hardware, &settings, workload, span, &streams, watch);
        let outcome = outcome.unwrap();
        assert!(outcome.stopped && outcome.events >= 65_536);
        let to = span.from.after(outcome.counted);
        assert!(to < span.to);
        for node in &outcome.nodes {
            assert!(node.busy.iter().all(|&busy| busy <= outcome.counted));
        }
        // No group was ahead: counted requests arrived before the end, and the remainder is part of a block.
        let counted: u64 = outcome.functions.iter().map(|own| own.requests).sum();
        assert!(counted <= outcome.arrived && outcome.arrived < counted + 2_000);
    }
}
