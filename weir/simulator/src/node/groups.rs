//! Nodes that have nothing to do with each other take turns, and not each event.
//!
//! What a node does depends on another node only where they hold a function together, whose requests go to the one that has less
//! to do. Nodes that are bound so, over others too, are a *group*, and what happens in one changes nothing in another. So a
//! run reads a block of arrivals, and each group passes alone through the time that the block covers: what is known of its
//! functions stays in the processor's cache from one of its requests to the next. Results are the same to the last bit as those of
//! all events in the order of time.
//!
//! Memory: a block has [`PER_FUNCTION`] arrivals for each function, and those at the last one's instant.

use policy::Time;

use super::run::{Event, Run};
use super::state::Function;
use crate::agenda::Agenda;
use crate::traces::{Arrival, TraceError};

/// Arrivals of a block for each function: as each group's data is fetched once a block, more make that cheaper; beyond this, by
/// less than can be measured.
const PER_FUNCTION: usize = 4;
/// Of a block, however few functions there are.
const ARRIVALS_MIN: usize = 4_096;

/// Which group each function is of; none: it has no node.
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

/// Each node points to another of its group with a smaller number; the first, to itself.
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
        // Halves the way for the next one.
        leads[node as usize] = leads[leads[node as usize] as usize];
        node = leads[node as usize];
    }
    node
}

/// Arrivals, block by block.
#[derive(Debug)]
pub(super) struct Blocks<A> {
    arrivals: A,
    next: Option<Arrival>,
    groups: Groups,
    /// Arrivals of the block, by group.
    of_group: Vec<Vec<Arrival>>,
    /// When each of them comes that has a node.
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

    /// Reads the next block, of arrivals before `to`; none may be left of the one before. The time up to which it has all: events
    /// before that are to happen with it.
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
            // Whoever has no node is refused, in whichever turn.
            self.of_group[group.unwrap_or_default() as usize].push(arrival);
            self.next = self.arrivals.next().transpose()?;
        }
        Ok(to)
    }
}

impl Run<'_> {
    /// Lets one group after another pass through the time of each block; up to when it came. It stops at a block's end alone, so that
    /// all groups are at the same time.
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
        let (mut begin, mut goes_on) = (Time::ZERO, true);
        while goes_on && begin < self.span.to {
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
                    goes_on &= watch(events, begin);
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
        self.outcome.stopped = !goes_on;
        Ok(begin)
    }
}

/// How many are in flight, from when they came and when they left, where groups told it one after the other.
#[derive(Debug, Default)]
struct InFlight {
    now: u64,
    max: u64,
}

impl InFlight {
    /// Another block's, `came` in order. Whoever leaves at the instant at which another comes is there with it.
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
    use crate::node::{Counted, Hardware, Hops, Settings};
    use crate::random::{Purpose, Streams};
    use crate::rules::RuleName;

    fn counted() -> Counted {
        let second = |n| Time::ZERO.after(Span::from_secs(n));
        Counted {
            from: second(2),
            to: second(40),
            keep: 5_000,
        }
    }

    /// All that came of a run of so many functions, whose rates add up to so much, in turns or with all events in the order of time;
    /// and how many groups there are.
    fn told(
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
    fn turns_change_nothing() {
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
            let (expected, count) = told(&settings, 90, per_minute, false);
            let (found, _) = told(&settings, 90, per_minute, true);
            assert!(expected == found, "{rule:?}");
            counts.push(count);
        }
        counts.sort_unstable();
        let (least, most) = (counts[0], counts[counts.len() - 1]);
        assert!(least < most && most > 1, "{counts:?}");
    }

    /// Groups are the parts of a graph, found again by walking through it.
    #[test]
    fn groups_are_what_is_bound_by_functions() {
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
    fn a_watch_that_says_no_stops_all_at_the_same_time() {
        let hardware = Hardware::torpor();
        let mut settings = RuleName::Adaptive.settings();
        settings.nodes = 3;
        let mut spec = preset("torpor-node").unwrap().spec();
        spec.functions = 600;
        let workload = generate(&spec).unwrap();
        let streams = Streams::new(&spec.experiment, spec.seed);
        let span = Counted {
            to: Time::ZERO.after(Span::from_secs(100_000)),
            ..counted()
        };
        let told = &mut |_, _| false;
        let outcome = crate::node::run(&hardware, &settings, workload, span, &streams, told);
        let outcome = outcome.unwrap();
        assert!(outcome.stopped && outcome.events >= 65_536);
        let to = span.from.after(outcome.counted);
        assert!(to < span.to);
        for node in &outcome.nodes {
            assert!(node.busy.iter().all(|&busy| busy <= outcome.counted));
        }
        // Nobody was ahead: whoever was there came before the end, and what was left is a part of a block.
        let counted: u64 = outcome.functions.iter().map(|own| own.requests).sum();
        assert!(counted <= outcome.arrived && outcome.arrived < counted + 2_000);
    }
}
